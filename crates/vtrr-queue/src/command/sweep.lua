
-- sweep: the periodic repair.
-- ARGV: limit, how long dead letters are kept (ms).
-- Returns: {reclaimed, due, healed, dropped, 1 if there is more}.
local limit, kept = tonumber(ARGV[1]), tonumber(ARGV[2])
local cursors = call('HMGET', key.meta, 'sweep_head', 'sweep_held')
local reclaimed, back = lease.bring_due(limit)
local more = reclaimed + back == limit

-- Whether a partition has a tag up to this one; yes, too, where more tags than may be read stand before it.
local seen, looked, reached, read_bytes = {}, 0, -math.huge, 0
local function has_tag(partition, last)
  while not seen[partition] and reached <= last do
    if looked >= limit or read_bytes > 4194304 then return true end
    local found, ids = call('ZRANGE', key.queue, looked, looked + 24, 'WITHSCORES'), {}
    for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
    fetch(plan.task, ids)
    for i = 1, #ids do
      local payload = get(plan.task, ids[i])
      local whose = partition_of(payload)
      if whose then seen[whose] = true end
      read_bytes = read_bytes + #(payload or '')
    end
    looked = looked + #ids
    reached = #ids == 25 and tonumber(found[50]) or math.huge
  end
  return seen[partition]
end
for id, start in pairs(plan.queue.new) do
  local whose = start and partition_of(get(plan.task, id))
  if whose then seen[whose] = true end
end

-- Heads that somebody else took; tags of mode `all` that somebody else used up.
local healed = 0
local found = call('HSCAN', key.head, cursors[1] or '0', 'COUNT', 500)
local next_head = found[1]
plan.queue.read = true
for i = 1, #found[2], 2 do
  local kind, _, _, old, _, id = order.parse_head(found[2][i + 1])
  local partition = found[2][i]
  local suspect = kind ~= '-' and not score(plan.queue, kind == 'g' and '\0' .. partition or id)
  if old > 0 then
    local head = order.head_of(partition)
    suspect = head.old > 0 and not has_tag(partition, math.max(order.V, head.finish or 0))
    if suspect then head.old, head.old_paid = 0, 0 end
  end
  if suspect then
    local head = order.head_of(partition)
    if head.kind == kind and head.id == id then
      head.kind, head.id = '-', ''
      order.promote(head)
      healed = healed + 1
    end
  end
end

-- Records of redelivered tasks that somebody else took.
local dropped = 0
found = call('HSCAN', key.held, cursors[2] or '0', 'COUNT', 100)
plan.held.read = true
local next_held = found[1]
for i = 1, #found[2], 2 do
  local id, at = found[2][i], byte(found[2][i + 1])
  if (at == 81 or at == 113) and plan.held.new[id] == nil and not score(plan.queue, id) and not get(plan.waiting, id) then
    put(plan.held, id, nil)
    dropped = dropped + 1
  end
end

local old = call('ZRANGEBYSCORE', key.dead, '-inf', now - kept, 'LIMIT', 0, limit)
plan.dead.read = true
for i = 1, #old do
  if plan.dead.new[old[i]] == nil then lease.forget_dead(old[i]) end
end

-- Tasks in flight, counted anew while that is little work.
local leases = call('ZRANGE', key.lease, 0, 1000, 'WITHSCORES')
plan.lease.read = true
if #leases <= 2000 then
  local running_now, leased = {}, {}
  for i = 1, #leases, 2 do
    if plan.lease.new[leases[i]] == nil then leased[#leased + 1] = leases[i] end
  end
  fetch_all(plan.held, leased)
  for i = 1, #leased do
    local h = held_of(leased[i])
    local partition = h and partition_of(h.payload)
    if partition then running_now[partition] = (running_now[partition] or 0) + 1 end
  end
  local counted = call('HGETALL', key.running)
  for i = 1, #counted, 2 do
    local n = running_now[counted[i]]
    if tonumber(counted[i + 1]) ~= n then put(plan.running, counted[i], n) end
    running_now[counted[i]] = nil
  end
  for partition, n in pairs(running_now) do put(plan.running, partition, n) end
end

order.served = limit
if next_head ~= '0' or #old == limit then more = true end
commit(false)
if next_head == '0' then call('HDEL', key.meta, 'sweep_head') else call('HSET', key.meta, 'sweep_head', next_head) end
if next_held == '0' then call('HDEL', key.meta, 'sweep_held') else call('HSET', key.meta, 'sweep_held', next_held) end
return {reclaimed, back, healed, dropped, more and 1 or 0}
