
-- unflatten: mode `all` → `head`, at once.
-- ARGV: none.
-- Returns: {}.
call('HSET', META, 'mode', 'head')
return {}
