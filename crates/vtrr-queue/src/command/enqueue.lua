
-- enqueue: adds tasks of one partition, all or nothing.
-- ARGV: wanted mode or '', request id, partition, partition as a JSON string, whether ids were given (1 or 0), how long
--       request ids are remembered (ms); then per task: id, weight, payload without its prefix.
-- Returns: {positions of duplicates, from 0, joined by commas}.
local wanted, request, partition, json, given, remember = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5], tonumber(ARGV[6])
if mode and wanted ~= '' and wanted ~= mode then
  local switch = mode == 'head' and 'flatten` switches it to all' or 'unflatten` switches it to head'
  return {'ERR', 'mode', 'the queue is in tagging mode ' .. mode .. '; `' .. switch}
end
if call('ZSCORE', REQUEST, request) then return {call('HGET', ANSWER, request) or ''} end
mode = mode or (wanted ~= '' and wanted) or 'head'

local tasks = (#ARGV - 6) / 3
local duplicates, skip = {}, {}
if given == '1' then
  local ids, seen = {}, {}
  for i = 1, tasks do ids[i] = ARGV[4 + 3 * i] end
  fetch(waiting, ids)
  fetch(task, ids)
  fetch(held, ids, parse_held)
  for i = 1, tasks do
    local id = ids[i]
    local h = held_of(id)
    local payload = get(waiting, id) or get(task, id)
    if h and h.place ~= 'd' and not payload then payload = h.payload end
    if payload then
      if read(payload) ~= partition then return {'ERR', 'conflict', 'id ' .. id .. ' is live in another partition'} end
      skip[i] = true
    elseif seen[id] then
      skip[i] = true
    end
    seen[id] = true
    if skip[i] then
      duplicates[#duplicates + 1] = i - 1
    elseif h then
      forget_dead(id)
    end
  end
end

local old = call('ZRANGEBYSCORE', REQUEST, '-inf', now - remember, 'LIMIT', 0, 100)
call('HLEN', ANSWER)
local pairs, entries, tags = {}, {}, {}
local fresh = tasks - #duplicates
if fresh > 0 then
  placed = true
  local head = head_of(partition)
  if tagged(head) and not score(queue, head.id) then head.kind, head.id = '-', '' end -- a 0.1.0 worker took it
  promote(head)
  if mode == 'all' or unpaid(head) == 0 then arrive(head) end
  local first = mode == 'head' and head.kind == '-' and head.old + head.lane + head.paid == 0
  local prefix, at = '{"partition_key":' .. json .. ',"weight":', ',"at":' .. string.format('%.0f', now) .. ',"serial":'
  local n, m = 0, 0
  for i = 1, tasks do
    if not skip[i] then
      local from = 4 + 3 * i
      local id, weight = ARGV[from], ARGV[from + 1]
      serial = serial + 1
      local number = string.format('%.0f', serial)
      local payload = prefix .. weight .. at .. number .. ',' .. ARGV[from + 2]
      if mode == 'all' then
        tags[n + 1], tags[n + 2] = charge(head, tonumber(weight)), id
        pairs[n + 1], pairs[n + 2] = id, payload
        n = n + 2
      elseif first then
        head.kind, head.id = 'u', id
        queue.new[id], task.new[id] = charge(head, tonumber(weight)), payload
        first = false
      else
        m = m + 1
        entries[m] = number .. ' ' .. id
        pairs[n + 1], pairs[n + 2] = id, payload
        n = n + 2
      end
    end
  end
  count('enqueued', fresh)
  if mode == 'all' then
    head.old = head.old + fresh
    call('ZCARD', QUEUE)
    call('HLEN', TASK)
  else
    head.lane = head.lane + m
    local list = list_of(head, false)
    call('LLEN', list.key)
    list.read = true
    call('HLEN', WAITING)
  end
end

commit(true, function()
  call('HSET', META, 'version', 1, 'mode', mode, 'serial', string.format('%.0f', serial))
  if fresh == 0 then return end
  if mode == 'all' then
    write('ZADD', QUEUE, tags)
    write('HSET', TASK, pairs)
  elseif #entries > 0 then
    write('HSET', WAITING, pairs)
    write('RPUSH', LANE .. escape(partition), entries)
  end
end)
call('ZADD', REQUEST, now, request)
if #old > 0 then
  call('ZREM', REQUEST, unpack(old))
  call('HDEL', ANSWER, unpack(old))
end
call('PEXPIRE', REQUEST, remember)
local answer = table.concat(duplicates, ',')
if answer ~= '' then
  call('HSET', ANSWER, request, answer)
  call('PEXPIRE', ANSWER, remember)
end
return {answer}
