
-- partitions: who waits, who is served, one bounded step of it.
-- ARGV: cursor (phase and position), limit.
-- Returns: {next cursor or '', {{partition, queued, leased, share, ms its next task has been queued or -1}}}.
local phase, at = match(ARGV[1], '^(%a+) (%d+)$')
local found = call('HSCAN', phase == 'head' and key.head or key.running, at, 'COUNT', ARGV[2])
local names, rows, first = {}, {}, {}
for i = 1, #found[2], 2 do names[#names + 1] = found[2][i] end
for from = 1, #names, 1000 do
  local some = {unpack(names, from, math.min(from + 999, #names))}
  order.load_heads(some)
  fetch(plan.running, some)
  for i = 1, #some do
    if order.tagged(order.heads[some[i]]) then first[#first + 1] = order.heads[some[i]].id end
  end
end
fetch_all(plan.task, first)
for i = 1, #names do
  local head = order.heads[names[i]]
  local payload = order.tagged(head) and get(plan.task, head.id)
  local enqueued = payload and match(payload, '","weight":%d+,"at":(%d+),')
  rows[i] = {
    names[i], order.queued(head), tonumber(get(plan.running, names[i]) or 0), format('%.17g', head.share),
    enqueued and math.max(now - tonumber(enqueued), 0) or -1,
  }
end
local cursor = phase .. ' ' .. found[1]
if found[1] == '0' then cursor = phase == 'head' and 'running 0' or '' end
return {cursor, rows}
