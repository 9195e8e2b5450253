
-- stats: the queue in numbers.
-- ARGV: none.
-- Returns: {mode or '', queued, leased, delayed, dead, partitions, V, ms until something is due or -1, {total, n, …}}.
local fields, counts = call('HGETALL', key.meta), {}
local other = {version = true, mode = true, serial = true, token = true, mend = true, flatten_head = true}
for i = 1, #fields, 2 do
  if not other[fields[i]] and sub(fields[i], 1, 6) ~= 'sweep_' then
    counts[#counts + 1] = fields[i]
    counts[#counts + 1] = tonumber(fields[i + 1])
  end
end
return {
  mode or '', call('HLEN', key.task) + call('HLEN', key.waiting), call('ZCARD', key.lease), call('ZCARD', key.delayed), call('ZCARD', key.dead),
  call('HLEN', key.head), format('%.17g', order.V), lease.next_due(), counts,
}
