
-- purge: takes queued tasks out, of one partition or of all, one bounded step of it.
-- ARGV: partition or '' for all, cursor ('' to begin), limit.
-- Cursor: phase, position in the phase, and the last serial that existed at the first call.
-- Returns: {next cursor or '', purged, leased, delayed, dead}: the last three for what the step counted.
local wanted, limit = ARGV[1], tonumber(ARGV[3])
local phase, at, mark = match(ARGV[2], '^(%a+) (%S+) (%d+)$')
if not phase then
  phase, at, mark = 'lanes', '0', format('%.0f', serial)
end
local last = tonumber(mark)
local purged, leased, delayed_count, dead_count, budget = 0, 0, 0, 0, limit

local function is_doomed(payload)
  local partition, _, number = read(payload)
  if wanted ~= '' and partition ~= wanted then return false end
  return not number or tonumber(number) <= last
end

-- The front of a list up to the first task that came later; answers whether it got to the end.
local function purge_list(head, paid)
  local list = order.list_of(head, paid)
  list.want = math.max(math.min(budget, paid and head.paid or head.lane, 100), 1)
  while (paid and head.paid or head.lane) > 0 do
    if budget <= 0 then return false end
    budget = budget - 1
    local text = order.pop(list)
    if not text then
      order.missing = true
      if paid then head.paid = 0 else head.lane = 0 end
      return true
    end
    local id, payload = order.live(text)
    if id then
      if not is_doomed(payload) then
        order.push_front(list, text)
        return true
      end
      put(plan.waiting, id, nil)
      if held_of(id) then put(plan.held, id, nil) end
      if paid then head.paid = head.paid - 1 else head.lane = head.lane - 1 end
      purged = purged + 1
    end
  end
  return true
end

local function purge_partition(partition)
  local head = order.head_of(partition)
  if not (purge_list(head, true) and purge_list(head, false)) then return false end
  if order.tagged(head) and not score(plan.queue, head.id) then
    -- Somebody else took it.
    head.kind, head.id = '-', ''
    order.promote(head)
  elseif order.tagged(head) and is_doomed(get(plan.task, head.id)) then
    order.remove_queued(head.id)
    purged = purged + 1
    budget = budget - 1
  elseif head.kind == 'g' and head.lane + head.paid == 0 then
    head.kind = '-'
    put(plan.queue, order.ghost(head), nil)
  end
  return true
end

if phase == 'lanes' then
  if wanted ~= '' then
    if purge_partition(wanted) then phase, at = order.heads[wanted].old > 0 and 'tags' or 'delayed', '0' end
  else
    local found = call('HSCAN', key.head, at, 'COUNT', 100)
    local finished = true
    for i = 1, #found[2], 2 do
      if budget <= 0 then
        finished = false
        break
      end
      finished = purge_partition(found[2][i]) and finished
    end
    if finished then
      at = found[1]
      if at == '0' then phase = 'tags' end
    end
  end
elseif phase == 'tags' then
  -- Tags beside the heads: those of mode `all` and of 0.1.0. The position is the number of tags that stay.
  local keep = tonumber(at)
  local found = call('ZRANGE', key.queue, keep, keep + limit - 1)
  plan.queue.read = true
  fetch(plan.task, found)
  for i = 1, #found do
    local partition = partition_of(get(plan.task, found[i]))
    local is_head = partition and order.tagged(order.head_of(partition)) and order.heads[partition].id == found[i]
    if byte(found[i]) ~= 0 and not is_head and is_doomed(get(plan.task, found[i])) then
      order.remove_queued(found[i])
      purged = purged + 1
    else
      keep = keep + 1
    end
  end
  at = format('%.0f', keep)
  if #found < limit then phase, at = 'delayed', '0' end
elseif wanted == '' then
  leased, delayed_count, dead_count = call('ZCARD', key.lease), call('ZCARD', key.delayed), call('ZCARD', key.dead)
  phase = ''
else
  local from = tonumber(at)
  local found = call('ZRANGE', phase == 'delayed' and key.delayed or key.dead, from, from + limit - 1)
  local n = 0
  fetch(plan.held, found)
  for i = 1, #found do
    local h = held_of(found[i])
    if h and partition_of(h.payload) == wanted then n = n + 1 end
  end
  at = format('%.0f', from + limit)
  if phase == 'delayed' then delayed_count = n else dead_count = n end
  if #found < limit then
    if phase == 'delayed' then
      phase, at = 'dead', '0'
    else
      leased = tonumber(call('HGET', key.running, wanted) or 0)
      phase = ''
    end
  end
end
order.count('purged', purged)
commit(false)
return {phase == '' and '' or phase .. ' ' .. at .. ' ' .. mark, purged, leased, delayed_count, dead_count}
