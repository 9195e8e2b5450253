
-- stats: the queue in numbers.
-- ARGV: none.
-- Returns: {mode or '', queued, leased, delayed, dead, partitions, V, ms until something is due or -1, {total, n, …}}.
local fields, counts = call('HGETALL', META), {}
local other = {version = true, mode = true, serial = true, token = true, sweep_head = true, sweep_held = true, flatten_head = true}
for i = 1, #fields, 2 do
  if not other[fields[i]] then
    counts[#counts + 1] = fields[i]
    counts[#counts + 1] = tonumber(fields[i + 1])
  end
end
return {
  mode or '', call('HLEN', TASK) + call('HLEN', WAITING), call('ZCARD', LEASE), call('ZCARD', DELAYED), call('ZCARD', DEAD),
  call('HLEN', HEAD), string.format('%.17g', V), next_due(), counts,
}
