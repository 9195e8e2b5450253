
-- enqueue: adds tasks of one partition, all or nothing.
-- ARGV: wanted mode or '', request id, partition, partition as a JSON string, whether ids were given (1 or 0), how long
--       request ids are remembered (ms), number of tasks; and one text with all tasks, which costs clients less than three
--       arguments each: bytes of the id, weight, bytes of the payload without its prefix, a space after each; then these two.
--       Then max_queued and max_queued_per_partition, each '' for none, and how many tasks of the call come after these.
-- Returns: {positions of duplicates, from 0, joined by commas}.
local wanted, request, partition, json, given, remember = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
if mode and wanted ~= '' and wanted ~= mode then
  local switch = mode == 'head' and 'flatten` switches it to all' or 'unflatten` switches it to head'
  return {'ERR', 'mode', 'the queue is in tagging mode ' .. mode .. '; `' .. switch}
end
if call('ZSCORE', key.request, request) then return {call('HGET', key.answer, request) or ''} end
mode = mode or (wanted ~= '' and wanted) or 'head'

local tasks, text = tonumber(ARGV[7]), ARGV[8]
local ids, weights, rests = {}, {}, {}
local at = 1
for i = 1, tasks do
  local id_bytes, weight, bytes, first = match(text, '^(%d+) (%d+) (%d+) ()', at)
  local middle = first + id_bytes
  at = middle + bytes
  ids[i], weights[i], rests[i] = sub(text, first, middle - 1), weight, sub(text, middle, at - 1)
end
local duplicates, skip = {}, {}
if given == '1' then
  local seen = {}
  fetch(plan.waiting, ids)
  fetch(plan.task, ids)
  fetch(plan.held, ids)
  for i = 1, tasks do
    local id = ids[i]
    local h = held_of(id)
    local waiting = get(plan.waiting, id)
    local payload = waiting and unpack_waiting(waiting) or get(plan.task, id)
    if h and h.place ~= 'd' and not payload then payload = h.payload end
    if payload then
      if partition_of(payload) ~= partition then return {'ERR', 'conflict', 'id ' .. id .. ' is live in another partition'} end
      skip[i] = true
    elseif seen[id] then
      skip[i] = true
    end
    seen[id] = true
    if skip[i] then
      duplicates[#duplicates + 1] = i - 1
    elseif h then
      order.forget_dead(id)
    end
  end
end

local old = call('ZRANGEBYSCORE', key.request, '-inf', now - remember, 'LIMIT', 0, 100)
call('HLEN', key.answer)
local pairs, entries, tags = {}, {}, {}
local fresh = tasks - #duplicates
if fresh > 0 then
  order.placed = true
  local head = order.head_of(partition)
  if order.tagged(head) and not score(plan.queue, head.id) then head.kind, head.id = '-', '' end -- a 0.1.0 worker took it
  order.promote(head)
  local all, here, more = tonumber(ARGV[9]), tonumber(ARGV[10]), fresh + tonumber(ARGV[11])
  local queued = here and order.queued(head)
  if here and queued + more > here then
    return {'ERR', 'full_partition', 'partition ' .. json .. ' is full: ' .. whole(queued) .. ' queued and ' .. whole(more)
      .. ' to be added are more than max_queued_per_partition, ' .. ARGV[10]}
  end
  queued = all and call('HLEN', key.task) + call('HLEN', key.waiting)
  if all and queued + more > all then
    return {'ERR', 'full', 'the queue is full: ' .. whole(queued) .. ' queued and ' .. whole(more)
      .. ' to be added to partition ' .. json .. ' are more than max_queued, ' .. ARGV[9]}
  end
  if mode == 'all' or order.unpaid(head) == 0 then order.arrive(head) end
  local first = mode == 'head' and head.kind == '-' and head.old + head.lane + head.paid == 0
  local before, since = '{"partition_key":' .. json .. ',"weight":', ',"at":' .. whole(now) .. ',"serial":'
  local waits = ' ' .. whole(now) .. ' ' .. json .. ','
  local n, m = 0, 0
  for i = 1, tasks do
    if not skip[i] then
      local id, weight, rest = ids[i], weights[i], rests[i]
      serial = serial + 1
      local number = whole(serial)
      if mode == 'all' or first then
        local payload, start = before .. weight .. since .. number .. ',' .. rest, order.charge(head, tonumber(weight))
        if first then
          head.kind, head.id = 'u', id
          plan.queue.new[id], plan.task.new[id] = start, payload
          first = false
        else
          tags[n + 1], tags[n + 2] = start, id
          pairs[n + 1], pairs[n + 2] = id, payload
          n = n + 2
        end
      else
        m = m + 1
        entries[m] = number .. ' ' .. id
        pairs[n + 1], pairs[n + 2] = id, number .. ' ' .. weight .. waits .. rest
        n = n + 2
      end
    end
  end
  order.count('enqueued', fresh)
  if mode == 'all' then
    head.old = head.old + fresh
    call('ZCARD', key.queue)
    call('HLEN', key.task)
  else
    head.lane = head.lane + m
    local list = order.list_of(head, false)
    order.check_list(list)
    if m > 0 then list.back = entries end
    call('HLEN', key.waiting)
  end
end

commit(true, function()
  call('HSET', key.meta, 'version', 1, 'mode', mode, 'serial', format('%.0f', serial))
  if fresh == 0 then return end
  if mode == 'all' then
    write('HSET', key.task, pairs)
    write('ZADD', key.queue, tags)
  elseif #pairs > 0 then
    write('HSET', key.waiting, pairs)
  end
end)
call('ZADD', key.request, now, request)
if #old > 0 then
  call('ZREM', key.request, unpack(old))
  call('HDEL', key.answer, unpack(old))
end
call('PEXPIRE', key.request, remember)
local answer = table.concat(duplicates, ',')
if answer ~= '' then
  call('HSET', key.answer, request, answer)
  call('PEXPIRE', key.answer, remember)
end
return {answer}
