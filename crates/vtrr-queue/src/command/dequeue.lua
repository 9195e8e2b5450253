
-- dequeue: settles, gives back what the owner lost, brings back what is due, hands out the next tasks in order.
-- ARGV: n, lease (ms), max_deliveries, owner or '', request id, number of held ids, number of settlements; the held ids;
--       per settlement: id, token, outcome, delay (ms), text.
-- Returns: {settled codes, ms until something is due or -1, 1 if there is more,
--          deliveries: {id, token, count, blames, losses, payload}}.
local n, lease_ms, max_deliveries, name, request = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local named, settlements = tonumber(ARGV[6]), tonumber(ARGV[7])
local deliveries, delivered = {}, 0
local codes = settlements > 0 and lease.settle(8 + named, settlements) or {}
local holding = name ~= '' and holding_of(name)
local repeated = holding and holding.request == request
if repeated or n == 0 then lease.next_due() end -- see commit

if repeated then
  for _, id in ipairs(lease.owned(name, held_by(holding))) do
    local h = held_of(id)
    if holding.last[id] then deliveries[#deliveries + 1] = {id, h.token, h.deliveries, h.blames, h.losses, h.payload} end
  end
  commit(false)
  return {codes, lease.next_due(), 0, deliveries}
end

if holding then
  local keep, lost, given_back = {}, {}, {}
  for i = 8, 7 + named do keep[ARGV[i]] = true end
  for _, id in ipairs(held_by(holding)) do
    if not keep[id] then lost[#lost + 1] = id end
  end
  lost = lease.owned(name, lost)
  for i = 1, #lost do
    order.count('released', 1)
    lease.revoke(lost[i], held_of(lost[i]), 'release', given_back)
  end
  lease.place_all(given_back)
end

-- With tasks waiting and no tag at all, somebody else took the heads (0.1.0 does): gives up to 100 partitions new ones.
local function heal_stuck()
  if call('EXISTS', key.queue) == 1 or call('EXISTS', key.waiting) == 0 then return end
  local found = call('HSCAN', key.head, 0, 'COUNT', 100)[2]
  for i = 1, math.min(#found, 200), 2 do
    local head = order.head_of(found[i])
    if not (head.kind ~= '-' and plan.queue.new[head.id]) then
      head.kind, head.id, head.old, head.old_paid = '-', '', 0, 0
      order.promote(head)
    end
  end
end

-- Whether two payloads are of one task: then both are ours, with one serial.
local function is_same(one, other)
  local _, _, number = read(one)
  return number and number == select(3, read(other))
end

local reclaimed, back = lease.bring_due(100)
heal_stuck()
serve.begin(n)
local bytes, deadline = 0, format('%.0f', now + lease_ms)
local holder = name ~= '' and name or '-'
local stamp = time[1] .. format('%06d', time[2]) .. '-'
local held, leases, running = plan.held, plan.lease.new, plan.running
local seen, partitions = {}, 0
while delivered < n and order.served < n + 100 and partitions < 250 and bytes < 4194304 do
  local id, start, payload, partition = serve.take()
  if not id then break end
  order.served = order.served + 1
  local h = held_of(id)
  if h and SET_OF[h.place] and (not payload or is_same(payload, h.payload)) then
    -- Its tag is what a part of a transaction left.
  elseif payload then
    bytes = bytes + #payload
    tokens = tokens + 1
    local token, count, blames, losses = stamp .. whole(tokens), 1, 0, 0
    if (h and SET_OF[h.place]) or (not partition and get(plan.waiting, id)) then
      -- 0.1.0 queued the id while ours was busy: both run.
      id = id .. '~' .. token
      h = nil
    end
    if h then
      count, blames, losses = h.deliveries + 1, h.blames, h.losses
      h.place, h.token, h.deliveries, h.max_deliveries = 'l', token, count, max_deliveries
      h.start, h.owner, h.payload = format('%.17g', start), holder, payload
      held.new[id] = h
    else
      held.new[id] = 'l ' .. token .. ' 1 0 0 0 ' .. max_deliveries .. format(' %.17g ', start) .. holder .. ' ' .. payload
    end
    leases[id] = deadline
    if partition then
      running.new[partition] = (tonumber(get(running, partition)) or 0) + 1
      if not seen[partition] then seen[partition], partitions = true, partitions + 1 end
    end
    delivered = delivered + 1
    deliveries[delivered] = {id, token, count, blames, losses, payload}
  else
    h = h or new_held(max_deliveries)
    h.token = '-'
    lease.bury(id, h, 'missing lost: the task was queued but its payload is missing')
  end
end
order.count('delivered', delivered)
local more = reclaimed + back == 100
if delivered < n and serve.first() then more = true end

if name ~= '' then
  local kept = held_by(holding_of(name))
  holding = {request = request, ids = kept, last = {}}
  for i = 1, #kept do holding.last[kept[i]] = false end
  for i = 1, delivered do
    local id = deliveries[i][1]
    kept[#kept + 1] = id
    holding.last[id] = true
  end
  put(plan.owner, name, #kept > 0 and holding)
end
commit(false)
return {codes, lease.next_due(), more and 1 or 0, deliveries}
