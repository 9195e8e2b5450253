
-- order: the records of partitions, their lanes, and the order, R1 to R11 of docs/protocol.md, in the same steps as
-- state/order.rs.

local order = (function()

local order = {
  V = tonumber(call('GET', key.virtual_time) or 0),
  heads = {}, head_list = {}, -- records of partitions, by partition and in the order of reading
  totals = {},
  skips = 1000, -- cancelled tasks that may still be skipped
  placed = false, -- whether consumers are to be woken
  served = 0,
  missing = false, -- whether a lane had less than was counted
  on_tag = false, -- set while tasks are served: told of each new tag
}
order.V_before = order.V

-- A member or field that is long, and no task's or partition's; see commit.
order.LONG = string.rep('-', 65) .. '\0'

-- Forgets a dead letter. What stands in `dead` and is something else by now keeps its record.
function order.forget_dead(id)
  put(plan.dead, id, nil)
  put(plan.error, id, nil)
  local h = held_of(id)
  if h and h.place == 'd' then put(plan.held, id, nil) end
end

function order.count(total, n) order.totals[total] = (order.totals[total] or 0) + n end

local function escape(partition)
  if not find(partition, '[%%:]') then return partition end
  return (string.gsub(partition, '[%%:]', {['%'] = '%25', [':'] = '%3A'}))
end

-- `KIND LANE[,PAID,OLD,OLD_PAID] ID`, the middle ones only where one is not 0.
function order.parse_head(text)
  local kind, lane, more, id = match(text, '^(.)(%d+)(%S*) (.*)$')
  if not kind then return '-', 0, 0, 0, 0, '' end -- nothing that we wrote: no record may stop the others
  if more == '' then return kind, tonumber(lane), 0, 0, 0, id end
  local paid, old, old_paid = match(more, '^,(%d+),(%d+),(%d+)$')
  return kind, tonumber(lane), tonumber(paid or 0), tonumber(old or 0), tonumber(old_paid or 0), id
end

-- Loads the records of partitions: head, F, share.
function order.load_heads(partitions)
  local heads, head_list, new, n = order.heads, order.head_list, {}, 0
  for i = 1, #partitions do
    local partition = partitions[i]
    if not heads[partition] then
      heads[partition] = true
      n = n + 1
      new[n] = partition
    end
  end
  if n == 0 then return end
  plan.head.read, plan.finish.read = true, true
  local texts, finishes, shares =
    call('HMGET', key.head, unpack(new)), call('HMGET', key.finish, unpack(new)), call('HMGET', key.share, unpack(new))
  for i = 1, n do
    local text, after = texts[i], finishes[i] and tonumber(finishes[i]) or nil
    local kind, lane, paid, old, old_paid, id = '-', 0, 0, 0, 0, ''
    if text then kind, lane, paid, old, old_paid, id = order.parse_head(text) end
    local head = {
      partition = new[i], text = text, kind = kind, lane = lane, paid = paid, old = old, old_paid = old_paid, id = id,
      finish = after, finish_before = after, share = shares[i] and tonumber(shares[i]) or 1,
      had_lane = lane > 0, had_paid = paid > 0, lane_list = false, paid_list = false,
    }
    heads[new[i]] = head
    head_list[#head_list + 1] = head
  end
end

function order.head_of(partition)
  if not order.heads[partition] then order.load_heads({partition}) end
  return order.heads[partition]
end

function order.tagged(head) return head.kind == 'u' or head.kind == 'p' end
function order.unpaid(head) return head.lane + head.old - head.old_paid + (head.kind == 'u' and 1 or 0) end
function order.queued(head) return head.lane + head.paid + head.old + (order.tagged(head) and 1 or 0) end

-- Lanes: what was taken from the front, put there and added behind, to be written by commit().

function order.list_of(head, paid)
  local list = paid and head.paid_list or not paid and head.lane_list
  if not list then
    list = {key = (paid and key.paid or key.lane) .. escape(head.partition), at = 1, taken = 0, want = 1}
    if paid then head.paid_list = list else head.lane_list = list end
  end
  return list
end

-- Reads on in a list of entries `SERIAL ID`; the ids of what it read are added to `ids`.
function order.read_list(list, want, ids)
  local got = want == 1 and {call('LINDEX', list.key, list.taken) or nil}
    or call('LRANGE', list.key, list.taken, list.taken + want - 1)
  list.got, list.at, list.read = got, 1, true
  local n = #ids
  for i = 1, #got do ids[n + i] = match(got[i], ' (.*)$') end
end

function order.pop(list)
  local front = list.front
  if front and #front > 0 then return table.remove(front) end
  local text = list.got and list.got[list.at]
  if not text then
    local ids = {}
    order.read_list(list, list.want, ids)
    list.want = math.min(list.want * 2, 100)
    fetch(plan.waiting, ids)
    fetch(plan.task, ids)
    text = list.got[1]
    if not text then return nil end
  end
  list.at = list.at + 1
  list.taken = list.taken + 1
  return text
end

function order.check_list(list)
  if not list.read then
    call('LLEN', list.key)
    list.read = true
  end
end

function order.push_front(list, text)
  order.check_list(list)
  local front = list.front
  if front then front[#front + 1] = text else list.front = {text} end
end

function order.push_back(list, text)
  order.check_list(list)
  local back = list.back
  if back then back[#back + 1] = text else list.back = {text} end
end

-- The order: R1 to R11 of docs/protocol.md. The same steps as state/order.rs.

function order.arrive(head)
  local entry_time = order.V + 1 / head.share
  if not head.finish or head.finish < entry_time then head.finish = entry_time end
end

function order.next_start(head)
  local after = head.finish
  return after and after > order.V and after or order.V
end

function order.charge(head, weight)
  local start = order.next_start(head)
  local after = start + weight / head.share
  if after <= start then after = start * (1 + 2 ^ -52) end
  head.finish = after
  return start
end

function order.put_tag(id, start, payload, partition)
  local theirs = payload and get(plan.task, id)
  local place = theirs and score(plan.queue, id)
  if place then
    -- 0.1.0 queued a task of its own under this id: it keeps its place, under an id derived from it.
    order.put_tag(id .. '~' .. time[1] .. format('%06d', time[2]), place, theirs, partition_of(theirs))
  end
  plan.queue.new[id] = start
  if payload then plan.task.new[id] = payload end
  if order.on_tag then order.on_tag(start, id, partition) end
end

function order.ghost(head) return '\0' .. head.partition end

-- The waiting task of a lane entry, if it is live: id, payload, weight.
function order.live(text)
  local number, id = match(text, '^(%d+) (.*)$')
  local waiting = get(plan.waiting, id)
  if not waiting then return nil end
  local payload, weight, stored = unpack_waiting(waiting)
  if stored ~= number then return nil end
  return id, payload, weight
end

function order.promote(head)
  if head.kind ~= '-' or head.old > 0 then return end
  while head.paid > 0 or head.lane > 0 do
    local paid = head.paid > 0
    local text = order.pop(order.list_of(head, paid))
    if not text then
      -- Somebody deleted the lane, or a part of another transaction took from it: what is left of it waits for the sweep.
      order.missing = true
      if paid then head.paid = 0 else head.lane = 0 end
    else
      local id, payload, weight = order.live(text)
      if id then
        plan.waiting.new[id] = false
        local start = order.V
        if paid then
          head.paid, head.kind = head.paid - 1, 'p'
        else
          head.lane, head.kind = head.lane - 1, 'u'
          start = order.charge(head, weight)
        end
        head.id = id
        order.put_tag(id, start, payload, head.partition)
        return
      end
      order.skips = math.max(order.skips - 1, 0)
      if order.skips == 0 then
        head.kind = 'g'
        order.put_tag(order.ghost(head), paid and order.V or order.next_start(head))
        return
      end
    end
  end
end

function order.take_back(head)
  local kind, id = head.kind, head.id
  head.kind, head.id = '-', ''
  if kind == 'g' then
    put(plan.queue, order.ghost(head), nil)
  elseif kind ~= '-' then
    local start, waiting, number = score(plan.queue, id), pack(get(plan.task, id))
    if not start or not waiting then return end -- gone, or replaced by a task of 0.1.0 with this id
    put(plan.queue, id, nil)
    put(plan.task, id, nil)
    put(plan.waiting, id, waiting)
    order.push_front(order.list_of(head, kind == 'p'), number .. ' ' .. id)
    if kind == 'p' then
      head.paid = head.paid + 1
    else
      head.lane = head.lane + 1
      head.finish = start
    end
  end
end

function order.place(id, paid)
  order.placed = true
  local h = held_of(id)
  local payload = h.payload
  h.place, h.payload = paid and 'Q' or 'q', ''
  put(plan.held, id, h)
  local partition, weight, number = read(payload)
  if not partition then
    order.put_tag(id, order.V + 1, payload)
    return
  end
  local head = order.head_of(partition)
  local text = number .. ' ' .. id
  if paid and (mode == 'all' or head.old > 0) then
    order.put_tag(id, order.V, payload)
    head.old, head.old_paid = head.old + 1, head.old_paid + 1
    return
  end
  if paid then
    order.take_back(head)
    order.push_front(order.list_of(head, true), text)
    head.paid = head.paid + 1
  elseif mode == 'all' then
    order.arrive(head)
    order.put_tag(id, order.charge(head, weight), payload)
    head.old = head.old + 1
    return
  else
    if order.unpaid(head) == 0 then order.arrive(head) end
    order.push_front(order.list_of(head, false), text)
    head.lane = head.lane + 1
  end
  put(plan.waiting, id, (pack(payload)))
  order.promote(head)
end

function order.untagged(head, id)
  if head.id == id and order.tagged(head) then
    head.kind, head.id = '-', ''
  elseif head.old > 0 then
    head.old = head.old - 1
    local h = held_of(id)
    if h and h.place == 'Q' and head.old_paid > 0 then head.old_paid = head.old_paid - 1 end
  end
end

-- Takes a queued task out for good (R11). Answers whether it was there.
function order.remove_queued(id)
  local waiting = get(plan.waiting, id)
  if waiting then
    put(plan.waiting, id, nil)
    local head = order.head_of(partition_of((unpack_waiting(waiting))))
    local h = held_of(id)
    -- One that lost its lane is not counted.
    local which = h and h.place == 'Q' and 'paid' or 'lane'
    head[which] = math.max(head[which] - 1, 0)
    if h then put(plan.held, id, nil) end
    order.promote(head)
    if head.kind == 'g' and head.lane == 0 and head.paid == 0 then
      head.kind = '-'
      put(plan.queue, order.ghost(head), nil)
    end
    return true
  end
  local start = score(plan.queue, id)
  if not start then return false end
  local payload = get(plan.task, id)
  put(plan.queue, id, nil)
  put(plan.task, id, nil)
  local partition = partition_of(payload)
  if partition then
    local head = order.head_of(partition)
    if head.kind == 'u' and head.id == id and head.old == 0 then head.finish = start end
    order.untagged(head, id)
    order.promote(head)
  end
  if held_of(id) then put(plan.held, id, nil) end
  return true
end

return order
end)()
