
-- eviction: what the server does when its memory is full.
-- ARGV: none.
-- Returns: {maxmemory-policy, or '' where the caller may not ask}.
local info = redis.pcall('INFO', 'memory')
return {type(info) == 'string' and match(info, 'maxmemory_policy:(%S+)') or ''}
