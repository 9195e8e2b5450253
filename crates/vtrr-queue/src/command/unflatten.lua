
-- unflatten: mode `all` → `head`, at once.
-- ARGV: none.
-- Returns: {}.
call('HSET', key.meta, 'mode', 'head')
return {}
