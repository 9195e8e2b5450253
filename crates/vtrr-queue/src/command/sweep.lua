
-- sweep: the periodic repair.
-- ARGV: limit, how long dead letters are kept (ms), the sweeper's name or '', for how long it leads (ms).
-- Returns: {reclaimed, due, healed, dropped, 1 if there is more work, 1 if its round over the partitions goes on, 1 if this one leads}.
local limit, kept, sweeper = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3]
if sweeper ~= '' then
  local leader = call('GET', key.sweeper)
  if leader and leader ~= sweeper then return {0, 0, 0, 0, 0, 0, 0} end
end
local scans, cursors, next_cursor = {'head', 'held', 'waiting', 'task', 'dead'}, {}, {}
local noted = call('HMGET', key.meta, 'sweep_head', 'sweep_held', 'sweep_waiting', 'sweep_task', 'sweep_dead', 'sweep_count', 'mend')
for i = 1, #scans do cursors[scans[i]] = noted[i] or '0' end
local count, mend = tonumber(noted[6] or 100), noted[7]
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
local found = call('HSCAN', key.head, cursors.head, 'COUNT', 500)
next_cursor.head = found[1]
plan.queue.read = true
for i = 1, #found[2], 2 do
  local kind, lane, paid, old, _, id = order.parse_head(found[2][i + 1])
  local partition = found[2][i]
  local suspect = kind ~= '-' and not score(plan.queue, kind == 'g' and '\0' .. partition or id)
  if old > 0 then
    local head = order.head_of(partition)
    suspect = head.old > 0 and not has_tag(partition, math.max(order.V, head.finish or 0))
    if suspect then head.old, head.old_paid = 0, 0 end
  end
  if kind == '-' and lane + paid + old == 0 then order.head_of(partition) end -- commit drops it
  if suspect then
    local head = order.head_of(partition)
    if head.kind == kind and head.id == id then
      head.kind, head.id = '-', ''
      order.promote(head)
      healed = healed + 1
    end
  end
end

-- What a part of a transaction left behind, and records of redelivered tasks that somebody else took: about `count` fields
-- of each key. Where they are long, the other keys wait, and fewer are read next time.
local dropped, scanned, MUCH = 0, 0, 1048576
local function some(name, times)
  next_cursor[name] = cursors[name]
  if scanned > MUCH then return {}, {} end
  local found = call(name == 'dead' and 'ZSCAN' or 'HSCAN', key[name], cursors[name], 'COUNT', count * (times or 1))
  plan[name].read, next_cursor[name] = true, found[1]
  local fields, texts = {}, {}
  for i = 1, #found[2], 2 do
    scanned = scanned + #found[2][i + 1]
    -- What this sweep has touched is right, and a scan may bring a field twice.
    if plan[name].new[found[2][i]] == nil and not texts[found[2][i]] then
      fields[#fields + 1] = found[2][i]
      texts[found[2][i]] = found[2][i + 1]
    end
  end
  if name ~= 'held' then fetch_all(plan.held, fields) end
  return fields, texts
end
local function drop(name, field)
  put(plan[name], field, nil)
  dropped = dropped + 1
end

-- A held task is where its record says.
local fields, texts = some('held')
for i = 1, #fields do
  local id = fields[i]
  local at = sub(texts[id], 1, 1)
  local set = SET_OF[at]
  if set then
    if not score(plan[set], id) then
      put(plan[set], id, at == 'l' and now + 30000 or now)
      healed = healed + 1
    end
  elseif not score(plan.queue, id) and not get(plan.waiting, id) then
    drop('held', id)
  end
end

-- A waiting task is in a lane, unless it is leased, delayed or dead. Where its partition has none, it got lost, and gets
-- behind the others. While a loss is known, partitions that have one are looked through as well, if it is not long.
local budget, all_known = 5000, true
local function lost_of(head, of)
  local in_lanes = head.lane + head.paid
  if in_lanes == 0 then return of end
  if not mend or #of == 0 then return {} end
  if in_lanes > budget then
    all_known = false
    return {}
  end
  budget = budget - in_lanes
  local known, rest = {}, {}
  for _, paid in ipairs({true, false}) do
    for _, entry in ipairs(call('LRANGE', order.list_of(head, paid).key, 0, 2 * in_lanes)) do known[match(entry, ' (.*)$')] = true end
  end
  for i = 1, #of do
    if not known[of[i].id] then rest[#rest + 1] = of[i] end
  end
  return rest
end
fields, texts = some('waiting', mend and count == 100 and 5)
local partitions, lost = {}, {}
for i = 1, #fields do
  local h = held_of(fields[i])
  local payload, _, number = unpack_waiting(texts[fields[i]])
  local partition = partition_of(payload)
  local of = lost[partition]
  if not of then
    of = {}
    lost[partition] = of
    partitions[#partitions + 1] = partition
  end
  if h and SET_OF[h.place] then
    drop('waiting', fields[i])
  else
    of[#of + 1] = {number = tonumber(number), id = fields[i], paid = h and h.place == 'Q'}
  end
end
for from = 1, #partitions, 1000 do order.load_heads({unpack(partitions, from, math.min(from + 999, #partitions))}) end
for _, partition in ipairs(partitions) do
  local head, of = order.heads[partition], lost[partition]
  -- A list in which nothing is counted goes.
  if head.lane == 0 then order.check_list(order.list_of(head, false)) end
  if head.paid == 0 then order.check_list(order.list_of(head, true)) end
  of = lost_of(head, of)
  if #of > 0 then
    table.sort(of, function(a, b) return a.number < b.number end)
    if order.unpaid(head) == 0 then order.arrive(head) end
    for i = 1, #of do
      order.push_back(order.list_of(head, of[i].paid), whole(of[i].number) .. ' ' .. of[i].id)
      local which = of[i].paid and 'paid' or 'lane'
      head[which] = head[which] + 1
      healed = healed + 1
    end
    -- What is not in the list yet cannot be taken from it: a ghost stands for it.
    order.placed = true
    if head.kind == '-' then
      head.kind = 'g'
      order.put_tag(order.ghost(head), order.next_start(head))
    end
  end
end

-- A tagged task is in `queue`.
fields = some('task')
for i = 1, #fields do
  local id = fields[i]
  if not score(plan.queue, id) then
    local h = held_of(id)
    if h and SET_OF[h.place] or get(plan.waiting, id) then
      drop('task', id)
    else
      put(plan.queue, id, order.V)
      healed = healed + 1
    end
  end
end

-- A dead letter is held.
fields = some('dead')
for i = 1, #fields do
  local h = held_of(fields[i])
  if not h or h.place ~= 'd' then
    drop('dead', fields[i])
    put(plan.error, fields[i], nil)
  end
end

local old = call('ZRANGEBYSCORE', key.dead, '-inf', now - kept, 'LIMIT', 0, limit)
plan.dead.read = true
for i = 1, #old do
  if plan.dead.new[old[i]] == nil then order.forget_dead(old[i]) end
end

-- Tasks in flight, and who holds them, counted anew while that is little work.
local leases = call('ZRANGE', key.lease, 0, 1000, 'WITHSCORES')
plan.lease.read = true
if #leases <= 2000 then
  local running_now, leased, holders = {}, {}, {}
  for i = 1, #leases, 2 do
    if plan.lease.new[leases[i]] == nil then leased[#leased + 1] = leases[i] end
  end
  -- Those that got their lease back just now.
  for id, deadline in pairs(plan.lease.new) do
    if deadline then leased[#leased + 1] = id end
  end
  fetch_all(plan.held, leased)
  for i = 1, #leased do
    local h = held_of(leased[i])
    if h and h.place == 'l' then
      holders[leased[i]] = h.owner
      local partition = partition_of(h.payload)
      if partition then running_now[partition] = (running_now[partition] or 0) + 1 end
    else
      drop('lease', leased[i])
    end
  end
  local counted = call('HGETALL', key.running)
  for i = 1, #counted, 2 do
    local n = running_now[counted[i]]
    if tonumber(counted[i + 1]) ~= n then put(plan.running, counted[i], n) end
    running_now[counted[i]] = nil
  end
  for partition, n in pairs(running_now) do put(plan.running, partition, n) end
  if call('HLEN', key.owner) <= 1000 then
    plan.owner.read = true
    for _, name in ipairs(call('HKEYS', key.owner)) do
      local holding = holding_of(name)
      for _, id in ipairs(held_by(holding)) do
        if holders[id] ~= name then lease.disown(name, holding, id) end
      end
    end
  end
end

order.served = limit
if healed + dropped > 0 or #old == limit then more = true end
if order.missing or mend and next_cursor.waiting ~= '0' then more = true end
local next_count = scanned > MUCH and math.max(math.floor(count / 4), 1) or math.min(2 * count, 100)
commit(false, nil, function()
  if sweeper ~= '' then call('SET', key.sweeper, sweeper, 'PX', ARGV[4]) end
  if next_count ~= count then call('HSET', key.meta, 'sweep_count', next_count) end
  for i = 1, #scans do
    local name = scans[i]
    if name == 'waiting' and order.missing then
      -- It begins anew.
    elseif next_cursor[name] ~= '0' then
      call('HSET', key.meta, 'sweep_' .. name, next_cursor[name])
    elseif cursors[name] ~= '0' then
      call('HDEL', key.meta, 'sweep_' .. name)
    end
  end
  if mend and next_cursor.waiting == '0' and all_known and not order.missing then call('HDEL', key.meta, 'mend') end
end)
return {reclaimed, back, healed, dropped, more and 1 or 0, next_cursor.head ~= '0' and 1 or 0, 1}
