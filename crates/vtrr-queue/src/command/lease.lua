
-- lease: deliveries and what becomes of them, in the same steps as state/lease.rs.

local function end_lease(id, h)
  put(lease, id, nil)
  local partition = read(h.payload)
  if partition then
    local n = tonumber(get(running, partition) or 0) - 1
    put(running, partition, n > 0 and n or nil)
  end
  local holding = h.owner ~= '-' and holding_of(h.owner)
  if not holding or holding.last[id] == nil then return end
  holding.last[id] = nil
  holding.count = holding.count - 1
  put(owner, h.owner, holding.count > 0 and holding)
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
  local partitions = {}
  for i = 1, n do
    local h = held_of(ids[i])
    partitions[#partitions + 1] = h and read(h.payload)
  end
  fetch(running, partitions)
  for i = 1, n do
    local from = at + 5 * (i - 1)
    local h = held_of(ids[i])
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
  local known = 0
  for _ in pairs(set.new) do known = known + 1 end
  local found, due = call('ZRANGEBYSCORE', set.key, '-inf', now, 'WITHSCORES', 'LIMIT', 0, limit + known), {}
  set.read = true
  for i = 1, #found, 2 do
    if #due == limit then break end
    if set.new[found[i]] == nil then due[#due + 1] = {id = found[i], at = tonumber(found[i + 1])} end
  end
  return due
end

-- Brings back what is due, by time, leases first at equal times; answers how many leases and delayed tasks.
local function bring_due(limit)
  local expired, late = due_of(lease, limit), due_of(delayed, limit)
  local ids = {}
  for i = 1, #expired do ids[#ids + 1] = expired[i].id end
  for i = 1, #late do ids[#ids + 1] = late[i].id end
  fetch_all(held, ids, parse_held)
  local given_back, i, j = {}, 1, 1
  while i + j - 2 < limit and (expired[i] or late[j]) do
    if expired[i] and (not late[j] or expired[i].at <= late[j].at) then
      local id = expired[i].id
      local h = held_of(id)
      if h then revoke(id, h, true, given_back) else put(lease, id, nil) end
      i = i + 1
    else
      local id = late[j].id
      local h = held_of(id)
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

