
-- order: the order, R1 to R11 of docs/protocol.md, in the same steps as state/order.rs; and commit().

local V = tonumber(call('GET', VIRTUAL_TIME) or 0)
local V_before = V
local heads, head_list = {}, {}
local totals, total_list = {}, {}
local skips = 1000
local placed, served = false, 0
local on_tag -- set while tasks are served: told of each new tag

local function count(total, n)
  if n == 0 then return end
  if not totals[total] then total_list[#total_list + 1] = total end
  totals[total] = (totals[total] or 0) + n
end

local function escape(partition)
  if not find(partition, '[%%:]') then return partition end
  return (string.gsub(partition, '[%%:]', {['%'] = '%25', [':'] = '%3A'}))
end

-- `KIND LANE[,PAID,OLD,OLD_PAID] ID`, the middle ones only where one is not 0.
local function parse_head(text)
  local kind, lane, more, id = match(text, '^(.)(%d+)(%S*) (.*)$')
  if more == '' then return kind, tonumber(lane), 0, 0, 0, id end
  local paid, old, old_paid = match(more, '^,(%d+),(%d+),(%d+)$')
  return kind, tonumber(lane), tonumber(paid), tonumber(old), tonumber(old_paid), id
end

local function format_head(head)
  local id = ' ' .. head.id
  if head.paid == 0 and head.old == 0 then return head.kind .. head.lane .. id end
  return head.kind .. head.lane .. ',' .. head.paid .. ',' .. head.old .. ',' .. head.old_paid .. id
end

-- Loads the records of partitions: head, F, share.
local function load_heads(partitions)
  local new, n = {}, 0
  for i = 1, #partitions do
    local partition = partitions[i]
    if not heads[partition] then
      heads[partition] = true
      n = n + 1
      new[n] = partition
    end
  end
  if n == 0 then return end
  head_text.read, finish.read = true, true
  local texts, finishes, shares = call('HMGET', HEAD, unpack(new)), call('HMGET', FINISH, unpack(new)), call('HMGET', SHARE, unpack(new))
  for i = 1, n do
    local text, after = texts[i], finishes[i] and tonumber(finishes[i]) or nil
    local kind, lane, paid, old, old_paid, id = '-', 0, 0, 0, 0, ''
    if text then kind, lane, paid, old, old_paid, id = parse_head(text) end
    local head = {
      partition = new[i], text = text, kind = kind, lane = lane, paid = paid, old = old, old_paid = old_paid, id = id,
      finish = after, finish_before = after, share = shares[i] and tonumber(shares[i]) or 1,
    }
    if lane > 0 then head.had_lane = true end
    if paid > 0 then head.had_paid = true end
    heads[new[i]] = head
    head_list[#head_list + 1] = head
  end
end

local function head_of(partition)
  if not heads[partition] then load_heads({partition}) end
  return heads[partition]
end

local function tagged(head) return head.kind == 'u' or head.kind == 'p' end
local function unpaid(head) return head.lane + head.old - head.old_paid + (head.kind == 'u' and 1 or 0) end
local function queued(head) return head.lane + head.paid + head.old + (tagged(head) and 1 or 0) end

-- Lanes: what was taken from the front and put there, to be written by commit().

local function list_of(head, paid)
  local list = paid and head.paid_list or not paid and head.lane_list
  if not list then
    list = {key = (paid and PAID or LANE) .. escape(head.partition), at = 1, taken = 0, want = 1}
    if paid then head.paid_list = list else head.lane_list = list end
  end
  return list
end

local function entry(text) return match(text, '^(%d+) (.*)$') end

-- Reads on in a list; the ids of what it read are added to `ids`.
local function read_list(list, want, ids)
  local got = call('LRANGE', list.key, list.taken, list.taken + want - 1)
  list.got, list.at, list.read = got, 1, true
  local n = #ids
  for i = 1, #got do
    local _, id = entry(got[i])
    ids[n + i] = id
  end
end

local function pop(list)
  local front = list.front
  if front and #front > 0 then return table.remove(front) end
  local text = list.got and list.got[list.at]
  if not text then
    local ids = {}
    read_list(list, list.want, ids)
    list.want = math.min(list.want * 2, 100)
    fetch(waiting, ids)
    fetch(task, ids)
    text = list.got[1]
    if not text then return nil end
  end
  list.at = list.at + 1
  list.taken = list.taken + 1
  return text
end

local function check_list(list)
  if not list.read then
    call('LLEN', list.key)
    list.read = true
  end
end

local function push_front(list, text)
  check_list(list)
  local front = list.front
  if front then front[#front + 1] = text else list.front = {text} end
end

-- The order: R1 to R11 of docs/protocol.md. The same steps as state/order.rs.

local function arrive(head)
  local entry_time = V + 1 / head.share
  if not head.finish or head.finish < entry_time then head.finish = entry_time end
end

local function next_start(head)
  if head.finish and head.finish > V then return head.finish end
  return V
end

local function charge(head, weight)
  local start = next_start(head)
  local after = start + weight / head.share
  if after <= start then after = start * (1 + 2 ^ -52) end
  head.finish = after
  return start
end

local function put_tag(id, start, payload, partition)
  local theirs = payload and get(task, id)
  local place = theirs and score(queue, id)
  if place then
    -- 0.1.0 queued a task of its own under this id: it keeps its place, under an id derived from it.
    put_tag(id .. '~' .. time[1] .. string.format('%06d', time[2]), place, theirs, (read(theirs)))
  end
  queue.new[id] = start
  if payload then task.new[id] = payload end
  if on_tag then on_tag(start, id, partition) end
end

local function ghost(head) return '\0' .. head.partition end

-- The waiting task of a lane entry, if it is live: id, payload, weight.
local function live(text)
  local number, id = entry(text)
  local payload = get(waiting, id)
  if not payload then return nil end
  local _, weight, stored = read(payload)
  if stored ~= number then return nil end
  return id, payload, weight
end

local function promote(head)
  if head.kind ~= '-' or head.old > 0 then return end
  while head.paid > 0 or head.lane > 0 do
    local paid = head.paid > 0
    local text = pop(list_of(head, paid))
    if not text then
      -- Somebody deleted payloads: nothing is left of what was counted.
      if paid then head.paid = 0 else head.lane = 0 end
    else
      local id, payload, weight = live(text)
      if id then
        waiting.new[id] = false
        local start = V
        if paid then
          head.paid, head.kind = head.paid - 1, 'p'
        else
          head.lane, head.kind = head.lane - 1, 'u'
          start = charge(head, weight)
        end
        head.id = id
        put_tag(id, start, payload, head.partition)
        return
      end
      skips = math.max(skips - 1, 0)
      if skips == 0 then
        head.kind = 'g'
        put_tag(ghost(head), paid and V or next_start(head))
        return
      end
    end
  end
end

local function take_back(head)
  local kind, id = head.kind, head.id
  head.kind, head.id = '-', ''
  if kind == 'g' then
    put(queue, ghost(head), nil)
  elseif kind ~= '-' then
    local start, payload = score(queue, id), get(task, id)
    if not start or not payload then return end
    put(queue, id, nil)
    put(task, id, nil)
    put(waiting, id, payload)
    local _, _, number = read(payload)
    push_front(list_of(head, kind == 'p'), number .. ' ' .. id)
    if kind == 'p' then
      head.paid = head.paid + 1
    else
      head.lane = head.lane + 1
      head.finish = start
    end
  end
end

local function place(id, paid)
  placed = true
  local h = held_of(id)
  local payload = h.payload
  h.place, h.payload = paid and 'Q' or 'q', ''
  put(held, id, h)
  local partition, weight, number = read(payload)
  if not partition then
    put_tag(id, V + 1, payload)
    return
  end
  local head = head_of(partition)
  local text = number .. ' ' .. id
  if paid and (mode == 'all' or head.old > 0) then
    put_tag(id, V, payload)
    head.old, head.old_paid = head.old + 1, head.old_paid + 1
    return
  end
  if paid then
    take_back(head)
    push_front(list_of(head, true), text)
    head.paid = head.paid + 1
  elseif mode == 'all' then
    arrive(head)
    put_tag(id, charge(head, weight), payload)
    head.old = head.old + 1
    return
  else
    if unpaid(head) == 0 then arrive(head) end
    push_front(list_of(head, false), text)
    head.lane = head.lane + 1
  end
  put(waiting, id, payload)
  promote(head)
end

local function untagged(head, id)
  local h = held_of(id)
  if tagged(head) and head.id == id then
    head.kind, head.id = '-', ''
  elseif head.old > 0 then
    head.old = head.old - 1
    if h and h.place == 'Q' and head.old_paid > 0 then head.old_paid = head.old_paid - 1 end
  end
end

-- Takes a queued task out for good (R11). Answers whether it was there.
local function remove_queued(id)
  local payload = get(waiting, id)
  if payload then
    put(waiting, id, nil)
    local head = head_of((read(payload)))
    local h = held_of(id)
    if h and h.place == 'Q' then head.paid = head.paid - 1 else head.lane = head.lane - 1 end
    if h then put(held, id, nil) end
    promote(head)
    if head.kind == 'g' and head.lane == 0 and head.paid == 0 then
      head.kind = '-'
      put(queue, ghost(head), nil)
    end
    return true
  end
  local start = score(queue, id)
  if not start then return false end
  payload = get(task, id)
  put(queue, id, nil)
  put(task, id, nil)
  local partition = read(payload)
  if partition then
    local head = head_of(partition)
    if head.kind == 'u' and head.id == id and head.old == 0 then head.finish = start end
    untagged(head, id)
    promote(head)
  end
  if held_of(id) then put(held, id, nil) end
  return true
end

-- The end of a command.

-- R6: idle partitions whose F V has passed; bounded.
local function forget_idle()
  if served == 0 then return end
  idle.read = true
  local limit, known = 2 * served + 8, 0
  for _ in pairs(idle.new) do known = known + 1 end
  local found, passed = call('ZRANGEBYSCORE', IDLE, '-inf', V, 'LIMIT', 0, limit + known), {}
  for i = 1, #found do
    if #passed < limit and idle.new[found[i]] == nil then passed[#passed + 1] = found[i] end
  end
  for from = 1, #passed, 1000 do
    local some = {unpack(passed, from, math.min(from + 999, #passed))}
    local finishes, shares = call('HMGET', FINISH, unpack(some)), call('HMGET', SHARE, unpack(some))
    finish.read = true
    for i = 1, #some do
      if not finishes[i] or tonumber(finishes[i]) <= V + 1 / tonumber(shares[i] or 1) then
        put(finish, some[i], nil)
        put(idle, some[i], nil)
      end
    end
  end
end

-- What becomes of the partitions' records.
local function close_heads()
  for i = 1, #head_list do
    local head = head_list[i]
    local partition = head.partition
    if head.kind == '-' and queued(head) == 0 then
      if head.text then put(head_text, partition, nil) end
      if head.finish and head.finish <= V + 1 / head.share then head.finish = nil end
      put(idle, partition, head.finish and head.finish - 1 / head.share)
    else
      local text = format_head(head)
      if text ~= head.text then head_text.new[partition] = text end
      if not head.text then put(idle, partition, nil) end
    end
    if head.finish ~= head.finish_before then put(finish, partition, head.finish) end
    if head.lane == 0 and head.had_lane then check_list(list_of(head, false)) end
    if head.paid == 0 and head.had_paid then check_list(list_of(head, true)) end
  end
end

local function write_lane(list, live_ones)
  if live_ones == 0 then
    if list.read then call('UNLINK', list.key) end
  else
    if list.taken == 1 then
      call('LPOP', list.key)
    elseif list.taken > 0 then
      call('LTRIM', list.key, list.taken, -1)
    end
    if list.front then write('LPUSH', list.key, list.front) end
  end
end

-- Writes the plan. `first` writes what a command has beside it. With `grows` it must start with a write that a full server
-- refuses; else the first write is one that it lets through, and then it lets all of them through.
local function commit(grows, first)
  on_tag = nil
  close_heads()
  forget_idle()
  for i = 1, #overlays do
    local o = overlays[i]
    if not o.read and next(o.new) ~= nil then call(o.length, o.key) end
  end
  -- What is read after the first write is read before it too, in case that is not allowed.
  call('EXISTS', QUEUE)
  local buried = next(dead.new) ~= nil
  if buried then
    call('HLEN', ERROR)
    call('ZCARD', DEAD)
    call('ZRANGE', DEAD, 0, 0)
  end

  if not grows then call('HDEL', META, '') end
  if first then first() end
  write_removals(queue, 'ZREM')
  write_removals(lease, 'ZREM')
  write_removals(delayed, 'ZREM')
  write_removals(dead, 'ZREM')
  write_removals(task, 'HDEL')
  write_removals(waiting, 'HDEL')
  write_removals(held, 'HDEL')
  write_removals(owner, 'HDEL')
  write_removals(running, 'HDEL')
  write_removals(errors, 'HDEL')
  write_removals(head_text, 'HDEL')
  for i = 1, #head_list do
    local head = head_list[i]
    if head.lane_list then write_lane(head.lane_list, head.lane) end
    if head.paid_list then write_lane(head.paid_list, head.paid) end
  end
  write_set(queue)
  write_set(lease)
  write_set(delayed)
  write_set(dead)
  write_hash(task)
  write_hash(waiting)
  write_hash(held, format_held)
  write_hash(owner, format_owner)
  write_hash(running)
  write_hash(errors)
  write_hash(head_text)
  if call('EXISTS', QUEUE) == 0 then
    -- R5.
    call('DEL', VIRTUAL_TIME, FINISH, IDLE)
    if call('EXISTS', WAITING) == 0 then call('DEL', HEAD) end
  else
    write_removals(finish, 'HDEL')
    write_removals(idle, 'ZREM')
    write_hash(finish)
    write_set(idle)
    if V ~= V_before then call('SET', VIRTUAL_TIME, V) end
  end
  local too_many = buried and call('ZCARD', DEAD) - 10000 or 0
  if too_many > 0 then
    local oldest = call('ZRANGE', DEAD, 0, math.min(too_many, 1000) - 1)
    write('ZREM', DEAD, oldest)
    write('HDEL', ERROR, oldest)
    write('HDEL', HELD, oldest)
  end
  for i = 1, #total_list do call('HINCRBY', META, total_list[i], totals[total_list[i]]) end
  if placed then redis.pcall('PUBLISH', WAKE, '') end
end
