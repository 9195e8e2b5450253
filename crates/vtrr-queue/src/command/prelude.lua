-- What all scripts share. A script plans in its own memory, reading only, and writes everything in commit(), after
-- every key it will write has been read with the command of its type: so an error changes nothing.
--
-- KEYS: the keys of keys.rs, in that order. The last three are two prefixes of list keys and a channel; lanes are named
--       here, in the queue's own slot.
-- Returns, where a command is refused: {"ERR", kind, message}.
local QUEUE, VIRTUAL_TIME, FINISH, TASK, WAITING, HEAD, IDLE, LEASE, HELD, OWNER, RUNNING, DELAYED, DEAD, ERROR, SHARE, META,
  REQUEST, ANSWER, LANE, PAID, WAKE = unpack(KEYS)
local call, match, find, sub, byte = redis.call, string.match, string.find, string.sub, string.byte

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local meta = call('HMGET', META, 'version', 'mode', 'serial', 'token')
if tonumber(meta[1] or 1) > 1 then
  return {'ERR', 'version', 'the queue has format version ' .. meta[1] .. '; this client knows version 1: upgrade it'}
end
local mode, serial, tokens = meta[2], tonumber(meta[3] or 0), tonumber(meta[4] or 0)

-- Overlays: hashes and sorted sets as they will be after commit().

local function overlay(key, length)
  return {key = key, length = length, value = {}, known = {}, changed = {}, list = {}}
end
local queue, lease, delayed, dead, idle = overlay(QUEUE, 'ZCARD'), overlay(LEASE, 'ZCARD'), overlay(DELAYED, 'ZCARD'),
  overlay(DEAD, 'ZCARD'), overlay(IDLE, 'ZCARD')
local task, waiting, head_text, finish, held, owner, running, errors = overlay(TASK, 'HLEN'), overlay(WAITING, 'HLEN'),
  overlay(HEAD, 'HLEN'), overlay(FINISH, 'HLEN'), overlay(HELD, 'HLEN'), overlay(OWNER, 'HLEN'), overlay(RUNNING, 'HLEN'),
  overlay(ERROR, 'HLEN')

-- Reads many fields of a hash at once: at most 1,000.
local function fetch(hash, fields, parse)
  local new = {}
  for i = 1, #fields do
    local field = fields[i]
    if not hash.known[field] then
      hash.known[field] = true
      new[#new + 1] = field
    end
  end
  if #new == 0 then return end
  hash.read = true
  local values = call('HMGET', hash.key, unpack(new))
  for i = 1, #new do
    local value = values[i]
    if value then
      if parse then value = parse(value) end
      hash.value[new[i]] = value
    end
  end
end

local function get(hash, field)
  if not hash.known[field] then
    hash.known[field] = true
    hash.read = true
    hash.value[field] = call('HGET', hash.key, field) or nil
  end
  return hash.value[field]
end

local function put(overlaid, field, value)
  if not overlaid.changed[field] then
    overlaid.changed[field] = true
    overlaid.list[#overlaid.list + 1] = field
  end
  overlaid.known[field] = true
  overlaid.value[field] = value
end

local function score(set, member)
  if not set.known[member] then
    set.known[member] = true
    set.read = true
    set.value[member] = tonumber(call('ZSCORE', set.key, member) or nil)
  end
  return set.value[member]
end

-- Writes a call with many arguments in pieces.
local function write(command, key, args)
  for from = 1, #args, 1000 do
    call(command, key, unpack(args, from, math.min(from + 999, #args)))
  end
end

local function write_removals(overlaid, command)
  local gone = {}
  for i = 1, #overlaid.list do
    local field = overlaid.list[i]
    if overlaid.value[field] == nil then gone[#gone + 1] = field end
  end
  write(command, overlaid.key, gone)
end

local function write_hash(hash, format)
  local pairs, n = {}, 0
  for i = 1, #hash.list do
    local field = hash.list[i]
    local value = hash.value[field]
    if value ~= nil then
      pairs[n + 1] = field
      pairs[n + 2] = format and format(value) or value
      n = n + 2
    end
  end
  write('HSET', hash.key, pairs)
end

local function write_set(set)
  local pairs, n = {}, 0
  for i = 1, #set.list do
    local member = set.list[i]
    local value = set.value[member]
    if value ~= nil then
      pairs[n + 1] = value
      pairs[n + 2] = member
      n = n + 2
    end
  end
  write('ZADD', set.key, pairs)
end

-- The queue's own state.

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

-- Partition, weight and serial of a payload; none for what 0.1.0 stored.
local function read(payload)
  if not payload then return nil end
  local partition, weight, number, rest =
    match(payload, '^{"partition_key":"([^"\\]*)","weight":(%d+),"at":%d+,"serial":(%d+),()')
  if partition then return partition, tonumber(weight), number, rest end
  -- An escaped partition. Its end is the first `","weight":`, since a quote inside is escaped.
  if sub(payload, 1, 18) ~= '{"partition_key":"' then return nil end
  local close = find(payload, '","weight":', 19, true)
  if not close then return nil end
  weight, number, rest = match(payload, '^","weight":(%d+),"at":%d+,"serial":(%d+),()', close)
  if not weight then return nil end
  local ok, decoded = pcall(cjson.decode, '[' .. sub(payload, 18, close) .. ']')
  if not ok then return nil end
  return decoded[1], tonumber(weight), number, rest
end

-- "a" before "b" by bytes, as sorted sets compare; Lua's own < follows the server's locale.
local function before(a, b)
  local shorter = math.min(#a, #b)
  for i = 1, shorter do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
end

local function escape(partition)
  if not find(partition, '[%%:]') then return partition end
  return (string.gsub(partition, '[%%:]', {['%'] = '%25', [':'] = '%3A'}))
end

local function parse_head(text)
  local lane, paid, old, old_paid, kind, id = match(text, '^(%d+) (%d+) (%d+) (%d+) (.) (.*)$')
  return tonumber(lane), tonumber(paid), tonumber(old), tonumber(old_paid), kind, id
end

-- Loads the records of partitions: head, F, share.
local function load_heads(partitions)
  local new = {}
  for i = 1, #partitions do
    local partition = partitions[i]
    if not heads[partition] then
      heads[partition] = true
      new[#new + 1] = partition
    end
  end
  if #new == 0 then return end
  head_text.read, finish.read = true, true
  local texts, finishes, shares = call('HMGET', HEAD, unpack(new)), call('HMGET', FINISH, unpack(new)), call('HMGET', SHARE, unpack(new))
  for i = 1, #new do
    local head = {partition = new[i], lane = 0, paid = 0, old = 0, old_paid = 0, kind = '-', id = '', existed = false}
    if texts[i] then
      head.existed = true
      head.text = texts[i]
      head.lane, head.paid, head.old, head.old_paid, head.kind, head.id = parse_head(texts[i])
      head.had_lane, head.had_paid = head.lane > 0, head.paid > 0
    end
    head.finish = tonumber(finishes[i] or nil)
    head.finish_before = head.finish
    head.share = tonumber(shares[i] or 1)
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
  local name = paid and 'paid_list' or 'lane_list'
  local list = head[name]
  if not list then
    list = {key = (paid and PAID or LANE) .. escape(head.partition), front = {}, got = {}, at = 1, taken = 0, want = 1}
    head[name] = list
  end
  return list
end

local function entry(text) return match(text, '^(%d+) (.*)$') end

local function read_list(list)
  list.got = call('LRANGE', list.key, list.taken, list.taken + list.want - 1)
  list.at = 1
  list.read = true
  list.want = math.min(list.want * 2, 100)
  local ids = {}
  for i = 1, #list.got do
    local _, id = entry(list.got[i])
    ids[i] = id
  end
  return ids
end

local function pop(list)
  local front = list.front
  if #front > 0 then return table.remove(front) end
  if not list.got[list.at] then
    fetch(waiting, read_list(list))
    if not list.got[1] then return nil end
  end
  local text = list.got[list.at]
  list.at = list.at + 1
  list.taken = list.taken + 1
  return text
end

local function push_front(list, text)
  if not list.read then
    call('LLEN', list.key)
    list.read = true
  end
  list.front[#list.front + 1] = text
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

local function put_tag(id, start, payload)
  put(queue, id, start)
  if payload then put(task, id, payload) end
  if on_tag then on_tag(start, id) end
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
    if not text then return end
    local id, payload, weight = live(text)
    if id then
      put(waiting, id, nil)
      local start = V
      if paid then
        head.paid, head.kind = head.paid - 1, 'p'
      else
        head.lane, head.kind = head.lane - 1, 'u'
        start = charge(head, weight)
      end
      head.id = id
      put_tag(id, start, payload)
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

-- Held tasks: `place token deliveries blames free_used max_deliveries start owner payload`.

local function parse_held(text)
  local place, token, deliveries, blames, free_used, max_deliveries, start, holder, rest =
    match(text, '^(%a) (%S+) (%d+) (%d+) (%d) (%d+) (%S+) (%S+) ()')
  return {
    place = place, token = token, deliveries = tonumber(deliveries), blames = tonumber(blames), free_used = free_used,
    max_deliveries = max_deliveries, start = start, owner = holder, payload = sub(text, rest),
  }
end

local function format_held(h)
  return table.concat({h.place, h.token, h.deliveries, h.blames, h.free_used, h.max_deliveries, h.start, h.owner, h.payload}, ' ')
end

local function new_held(max_deliveries)
  return {
    place = 'q', token = '-', deliveries = 0, blames = 0, free_used = '0', max_deliveries = max_deliveries, start = '0',
    owner = '-', payload = '',
  }
end

local function held_of(id)
  if not held.known[id] then fetch(held, {id}, parse_held) end
  return held.value[id]
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

-- Owners: `request`, then each id it holds behind \0 and a sign: + if it came with that request.

local function parse_owner(text)
  local request, rest = match(text, '^([^%z]*)(.*)$')
  local holding = {request = request, ids = {}}
  for sign, id in string.gmatch(rest, '%z([+-])([^%z]*)') do
    holding.ids[#holding.ids + 1] = {id = id, last = sign == '+'}
  end
  return holding
end

local function format_owner(holding)
  local parts = {holding.request}
  for i = 1, #holding.ids do
    parts[i + 1] = '\0' .. (holding.ids[i].last and '+' or '-') .. holding.ids[i].id
  end
  return table.concat(parts)
end

local function holding_of(name)
  if not owner.known[name] then fetch(owner, {name}, parse_owner) end
  return owner.value[name]
end

local function end_lease(id, h)
  put(lease, id, nil)
  local partition = read(h.payload)
  if partition then
    local n = tonumber(get(running, partition) or 0) - 1
    put(running, partition, n > 0 and n or nil)
  end
  local holding = h.owner ~= '-' and holding_of(h.owner)
  if not holding then return end
  for i = 1, #holding.ids do
    if holding.ids[i].id == id then
      table.remove(holding.ids, i)
      break
    end
  end
  put(owner, h.owner, #holding.ids > 0 and holding or nil)
end

local function forget_dead(id)
  put(dead, id, nil)
  put(errors, id, nil)
  put(held, id, nil)
end

local function bury(id, h, reason)
  h.place = 'd'
  put(held, id, h)
  put(dead, id, now)
  put(errors, id, reason)
  count('dead', 1)
end

-- Settling.

local function standing(h, token)
  if not h then return 1 end
  if h.token ~= token then return 2 end
  if h.place ~= 'l' then return 1 end
  return 0
end

-- A task to be placed again, with the tag it was served at and the number of its last delivery.
local function given(id, h, paid)
  return {start = tonumber(h.start), number = tonumber(match(h.token, '%-(%d+)$') or 0), id = id, paid = paid}
end

local function come_back(id, h, delay, paid, given_back)
  if delay == 0 then
    h.place = 'q'
    given_back[#given_back + 1] = given(id, h, paid)
  else
    h.place = paid and 'p' or 'r'
    put(held, id, h)
    put(delayed, id, now + delay)
  end
end

local function give_back(id, h, delay, blame, given_back)
  local paid = true
  if blame then
    h.blames = h.blames + 1
    if h.blames >= tonumber(h.max_deliveries) then
      bury(id, h, 'poison: ' .. h.blames .. ' deliveries ended without a settle')
      return
    end
    paid = h.free_used == '0'
    h.free_used = '1'
  end
  put(held, id, h)
  come_back(id, h, delay, paid, given_back)
end

local function settle_one(id, h, outcome, delay, text, given_back)
  end_lease(id, h)
  if outcome == 'ack' then
    put(held, id, nil)
    count('acked', 1)
  elseif outcome == 'fail' then
    count('failed', 1)
    bury(id, h, text)
  elseif outcome == 'retry' then
    count('retried', 1)
    if text ~= '' then
      local _, _, _, rest = read(h.payload)
      h.payload = sub(h.payload, 1, (rest or 2) - 1) .. text
    end
    put(held, id, h)
    come_back(id, h, delay, false, given_back)
  else
    count('released', 1)
    give_back(id, h, delay, outcome == 'blame', given_back)
  end
end

-- Several at once: latest start tag first, so that they keep their order (R9); where tags are equal, as those of paid
-- tasks often are, the one delivered last goes first.
local function place_all(given_back)
  if #given_back > 1 then
    table.sort(given_back, function(a, b)
      if a.start ~= b.start then return a.start > b.start end
      return a.number > b.number
    end)
  end
  for i = 1, #given_back do place(given_back[i].id, given_back[i].paid) end
end

-- ARGV from `at`: n times id, token, outcome, delay, text. Answers n codes.
local function settle(at, n)
  local ids, codes, given_back = {}, {}, {}
  for i = 1, n do ids[i] = ARGV[at + 5 * (i - 1)] end
  fetch(held, ids, parse_held)
  for i = 1, n do
    local from = at + 5 * (i - 1)
    local h = held.value[ids[i]]
    codes[i] = standing(h, ARGV[from + 1])
    if codes[i] == 0 then
      settle_one(ids[i], h, ARGV[from + 2], tonumber(ARGV[from + 3]), ARGV[from + 4], given_back)
    end
  end
  place_all(given_back)
  return codes
end

local function revoke(id, h, blame, given_back)
  end_lease(id, h)
  give_back(id, h, 0, blame, given_back)
  h.token = '-'
end

-- The members of a sorted set of times that are due, as it will be after commit(): at most `limit`.
local function due_of(set, limit)
  local found = call('ZRANGEBYSCORE', set.key, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit + #set.list)
  set.read = true
  local due = {}
  for i = 1, #found, 2 do
    if #due == limit then break end
    if not set.changed[found[i]] then due[#due + 1] = {id = found[i], at = tonumber(found[i + 1])} end
  end
  return due
end

-- Brings back what is due, by time, leases first at equal times; answers how many leases and delayed tasks.
local function bring_due(limit)
  local expired, late = due_of(lease, limit), due_of(delayed, limit)
  local ids = {}
  for i = 1, #expired do ids[#ids + 1] = expired[i].id end
  for i = 1, #late do ids[#ids + 1] = late[i].id end
  for from = 1, #ids, 1000 do fetch(held, {unpack(ids, from, math.min(from + 999, #ids))}, parse_held) end
  local given_back, i, j = {}, 1, 1
  while i + j - 2 < limit and (expired[i] or late[j]) do
    if expired[i] and (not late[j] or expired[i].at <= late[j].at) then
      local id = expired[i].id
      local h = held.value[id]
      if h then revoke(id, h, true, given_back) else put(lease, id, nil) end
      i = i + 1
    else
      local id = late[j].id
      local h = held.value[id]
      put(delayed, id, nil)
      if h then given_back[#given_back + 1] = given(id, h, h.place == 'p') end
      j = j + 1
    end
  end
  count('reclaimed', i - 1)
  place_all(given_back)
  return i - 1, j - 1
end

-- Milliseconds until something is due; -1 for never. After commit().
local function next_due()
  local first
  for _, key in ipairs({LEASE, DELAYED}) do
    local found = call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if found[2] and (not first or tonumber(found[2]) < first) then first = tonumber(found[2]) end
  end
  return first and math.max(first - now, 0) or -1
end

-- Serving: the smallest tags of the sorted set and those given in this call, merged.

local candidates, candidate, window_from, window_want = {}, 1, 0, 0
local heap = {}

local function heap_before(a, b)
  if a[1] ~= b[1] then return a[1] < b[1] end
  return before(a[2], b[2])
end

local function heap_push(start, id)
  local at = #heap + 1
  local item = {start, id}
  while at > 1 do
    local parent = math.floor(at / 2)
    if not heap_before(item, heap[parent]) then break end
    heap[at] = heap[parent]
    at = parent
  end
  heap[at] = item
end

local function heap_pop()
  local n = #heap
  local last = heap[n]
  heap[n] = nil
  n = n - 1
  if n == 0 then return end
  local at = 1
  while true do
    local child = 2 * at
    if child > n then break end
    if child < n and heap_before(heap[child + 1], heap[child]) then child = child + 1 end
    if not heap_before(heap[child], last) then break end
    heap[at] = heap[child]
    at = child
  end
  heap[at] = last
end

-- Reads the next candidates, their payloads, partitions and the first waiting task behind each of them: each kind in
-- one call, and one per lane.
local function read_window()
  local size = math.max(math.min(window_want, 16), 1)
  candidates = call('ZRANGE', QUEUE, window_from, window_from + size - 1, 'WITHSCORES')
  queue.read = true
  candidate = 1
  window_from = window_from + size
  local ids = {}
  for i = 1, #candidates, 2 do
    local id = candidates[i]
    if not queue.changed[id] and byte(id) ~= 0 then ids[#ids + 1] = id end
  end
  if #ids == 0 then return end
  fetch(task, ids)
  fetch(held, ids, parse_held)
  local partitions, of = {}, {}
  for i = 1, #ids do
    local partition = read(task.value[ids[i]])
    if partition then
      partitions[#partitions + 1] = partition
      of[#of + 1] = ids[i]
    end
  end
  if #partitions == 0 then return end
  load_heads(partitions)
  fetch(running, partitions)
  local share_of_work = math.min(math.ceil(window_want / #ids), 16)
  local next_ids = {}
  for i = 1, #partitions do
    local head = heads[partitions[i]]
    if head.id == of[i] and head.paid == 0 and head.lane > 0 then
      local list = list_of(head, false)
      if not list.read then
        list.want = math.min(share_of_work, head.lane)
        local got = read_list(list)
        for k = 1, #got do next_ids[#next_ids + 1] = got[k] end
      end
    end
  end
  fetch(waiting, next_ids)
end

-- The smallest tag, without taking it: start, id, whether it is on the heap.
local function first_tag()
  while true do
    local id = candidates[candidate]
    if not id then
      if window_from > 0 and #candidates == 0 then break end
      read_window()
    elseif queue.changed[id] then
      candidate = candidate + 2
    else
      local start = tonumber(candidates[candidate + 1])
      local top = heap[1]
      if top and heap_before(top, {start, id}) then return top[1], top[2], true end
      return start, id, false
    end
  end
  if heap[1] then return heap[1][1], heap[1][2], true end
end

-- Gets ready to serve about `want` tasks.
local function begin_serving(want)
  window_want = want
  for i = 1, #queue.list do
    local id = queue.list[i]
    if queue.value[id] then heap_push(queue.value[id], id) end
  end
  on_tag = heap_push
end

-- Takes the smallest tag (R4): id, start, payload, partition; nil if there is none, or only cancelled ones within reach.
local function take()
  while true do
    local start, id, on_heap = first_tag()
    if not id then return nil end
    local is_ghost = byte(id) == 0
    if is_ghost and skips == 0 then return nil end
    if on_heap then heap_pop() end
    put(queue, id, nil)
    if is_ghost then
      local head = head_of(sub(id, 2))
      head.kind = '-'
      promote(head)
    else
      if start > V then V = start end
      local payload = get(task, id)
      put(task, id, nil)
      local partition = read(payload)
      if partition then
        local head = head_of(partition)
        untagged(head, id)
        promote(head)
      end
      window_want = window_want - 1
      return id, start, payload, partition
    end
  end
end

-- With tasks waiting and no tag at all, somebody else took the heads (0.1.0 does): gives up to 100 partitions new ones.
local function heal_stuck()
  if call('ZCARD', QUEUE) > 0 or call('HLEN', WAITING) == 0 then return end
  local found = call('HSCAN', HEAD, 0, 'COUNT', 100)[2]
  for i = 1, math.min(#found, 200), 2 do
    local head = head_of(found[i])
    if not (head.kind ~= '-' and queue.value[head.id]) then
      head.kind, head.id, head.old, head.old_paid = '-', '', 0, 0
      promote(head)
    end
  end
end

-- The end of a command.

-- R6: idle partitions whose F V has passed; bounded.
local function forget_idle()
  if served == 0 then return end
  idle.read = true
  local limit = 2 * served + 8
  local found = call('ZRANGEBYSCORE', IDLE, '-inf', V, 'LIMIT', 0, limit + #idle.list)
  local passed = {}
  for i = 1, #found do
    if #passed < limit and not idle.changed[found[i]] then passed[#passed + 1] = found[i] end
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
    if queued(head) == 0 and head.kind == '-' then
      if head.existed then put(head_text, partition, nil) end
      if head.finish and head.finish <= V + 1 / head.share then head.finish = nil end
      put(idle, partition, head.finish and head.finish - 1 / head.share or nil)
    else
      local text = head.lane .. ' ' .. head.paid .. ' ' .. head.old .. ' ' .. head.old_paid .. ' ' .. head.kind .. ' ' .. head.id
      if text ~= head.text then put(head_text, partition, text) end
      if not head.existed then put(idle, partition, nil) end
    end
    if head.finish ~= head.finish_before then put(finish, partition, head.finish) end
  end
end

local function write_lane(list, count_live)
  if not list then return end
  if count_live == 0 then
    call('UNLINK', list.key)
  else
    if list.taken > 0 then call('LTRIM', list.key, list.taken, -1) end
    write('LPUSH', list.key, list.front)
  end
end

local overlays = {queue, task, waiting, head_text, finish, idle, lease, held, owner, running, delayed, dead, errors}

-- Writes the plan. `first` writes what a command has beside it. With `grows` it must start with a write that a full server
-- refuses; else the first write is one that it lets through, and then it lets all of them through.
local function commit(grows, first)
  on_tag = nil
  close_heads()
  forget_idle()
  for i = 1, #head_list do
    local head = head_list[i]
    if head.lane == 0 and head.had_lane then list_of(head, false) end
    if head.paid == 0 and head.had_paid then list_of(head, true) end
    for _, list in ipairs({head.lane_list or false, head.paid_list or false}) do
      if list and not list.read then
        call('LLEN', list.key)
        list.read = true
      end
    end
  end
  for i = 1, #overlays do
    local o = overlays[i]
    if not o.read and #o.list > 0 then call(o.length, o.key) end
  end
  local too_many = #dead.list > 0 and call('ZCARD', DEAD) + #dead.list - 10000 or 0
  if too_many > 0 then call('HLEN', ERROR) end

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
    write_lane(head.lane_list, head.lane)
    write_lane(head.paid_list, head.paid)
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
  if too_many > 0 then
    local oldest = call('ZRANGE', DEAD, 0, math.min(call('ZCARD', DEAD) - 10000, 1000) - 1)
    if #oldest > 0 then
      write('ZREM', DEAD, oldest)
      write('HDEL', ERROR, oldest)
      write('HDEL', HELD, oldest)
    end
  end
  for i = 1, #total_list do call('HINCRBY', META, total_list[i], totals[total_list[i]]) end
  if placed then redis.pcall('PUBLISH', WAKE, '') end
end
