
-- flatten: tags what waits and brings in what is delayed, one bounded step of it. Mode `head` → `all` with the last lane.
-- ARGV: limit.
-- Returns: {1 if there is more, tasks in lanes, tasks leased}.
local budget = tonumber(ARGV[1])
local late = call('ZRANGE', key.delayed, 0, budget - 1)
plan.delayed.read = true
fetch(plan.held, late)
local given_back = {}
for i = 1, #late do lease.end_delay(late[i], given_back) end
lease.place_all(given_back)
budget = budget - #late

local function tag(head, id, payload, weight, paid)
  put(plan.waiting, id, nil)
  order.put_tag(id, paid and order.V or order.charge(head, weight), payload)
  head.old = head.old + 1
  if paid then head.old_paid = head.old_paid + 1 end
end

-- The head's tag and all others of the partition become tags of mode `all`.
local function flatten_head(head)
  if order.tagged(head) then
    head.old = head.old + 1
    if head.kind == 'p' then head.old_paid = head.old_paid + 1 end
  elseif head.kind == 'g' then
    put(plan.queue, order.ghost(head), nil)
  end
  head.kind, head.id = '-', ''
  while budget > 0 and head.paid + head.lane > 0 do
    local paid = head.paid > 0
    local list = order.list_of(head, paid)
    list.want = math.max(math.min(budget, paid and head.paid or head.lane, 100), 1)
    local text = order.pop(list)
    if not text then
      order.missing = true
      if paid then head.paid = 0 else head.lane = 0 end
    else
      budget = budget - 1
      local id, payload, weight = order.live(text)
      if id then
        tag(head, id, payload, weight, paid)
        if paid then head.paid = head.paid - 1 else head.lane = head.lane - 1 end
      end
    end
  end
  return head.paid + head.lane == 0
end

local cursor = call('HGET', key.meta, 'flatten_head') or '0'
local done = mode == 'all'
if not done and budget > 0 then
  local found = call('HSCAN', key.head, cursor, 'COUNT', 100)
  local finished = true
  for i = 1, #found[2], 2 do finished = flatten_head(order.head_of(found[2][i])) and finished end
  for _, head in ipairs(order.head_list) do finished = flatten_head(head) and finished end
  if finished then cursor = found[1] end
end
-- What has lost its lane gets its tag too.
if not done and cursor == '0' and budget > 0 then
  local found = call('HSCAN', key.waiting, 0, 'COUNT', 10)[2]
  plan.waiting.read = true
  for i = 1, #found, 2 do
    local id = found[i]
    if plan.waiting.new[id] == nil then
      local payload, weight = unpack_waiting(found[i + 1])
      local head, h = order.head_of(partition_of(payload)), held_of(id)
      if h and SET_OF[h.place] then
        put(plan.waiting, id, nil)
      elseif head.lane + head.paid == 0 then
        tag(head, id, payload, weight, h and h.place == 'Q')
      end
    end
  end
end
call('HLEN', key.waiting)
call('ZCARD', key.lease)
commit(false)
local in_lanes = call('HLEN', key.waiting)
if in_lanes == 0 and not done then
  -- A head that a partition got since the cursor passed it stays one; it does no harm in mode `all`.
  done = cursor == '0'
  if done then call('HSET', key.meta, 'mode', 'all') end
end
if done or cursor == '0' then call('HDEL', key.meta, 'flatten_head') else call('HSET', key.meta, 'flatten_head', cursor) end
local more = not done or call('EXISTS', key.delayed) == 1
return {more and 1 or 0, in_lanes, call('ZCARD', key.lease)}
