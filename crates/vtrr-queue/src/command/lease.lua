
-- lease: deliveries and what becomes of them, in the same steps as state/lease.rs.

local lease = (function()

local lease = {}

-- Takes the lease away: from its partition's count and from its owner.
function lease.finish(id, partition, holder)
  plan.lease.new[id] = false
  if partition then
    local running = plan.running
    local n = tonumber(get(running, partition) or 0) - 1
    running.new[partition] = n > 0 and n or false
  end
  local holding = holder ~= '-' and holding_of(holder)
  if holding and holding.last[id] ~= nil then lease.disown(holder, holding, id) end
end

function lease.disown(name, holding, id)
  holding.last[id] = nil
  holding.count = holding.count - 1
  put(plan.owner, name, holding.count > 0 and holding)
end

-- What an owner holds of these ids of its record; the others go from it.
function lease.owned(name, ids)
  local holding, owned = holding_of(name), {}
  fetch_all(plan.held, ids)
  for i = 1, #ids do
    local h = held_of(ids[i])
    if h and h.place == 'l' and h.owner == name then
      owned[#owned + 1] = ids[i]
    else
      lease.disown(name, holding, ids[i])
    end
  end
  return owned
end

-- `why`: the cause, a word, and the error.
function lease.bury(id, h, why)
  h.place = 'd'
  put(plan.held, id, h)
  put(plan.dead, id, now)
  put(plan.error, id, why)
  order.count('dead', 1)
end

-- Settling.

-- Whether a delivery still stands, by place and token of its record: 0 yes, 1 gone, 2 lost.
function lease.standing(place, theirs, token)
  if not place then return 1 end
  if theirs ~= token then return 2 end
  return place == 'l' and 0 or 1
end

-- A task to be placed again, with the tag it was served at and the number of its last delivery.
function lease.given(id, h, paid)
  return {start = tonumber(h.start), number = tonumber(match(h.token, '%-(%d+)$') or 0), id = id, paid = paid}
end

function lease.come_back(id, h, delay, paid, given_back)
  if delay == 0 then
    h.place = 'q'
    given_back[#given_back + 1] = lease.given(id, h, paid)
  else
    h.place = paid and 'p' or 'r'
    put(plan.held, id, h)
    put(plan.delayed, id, now + delay)
  end
end

-- Gives a delivery back (R9). `how`: 'release', it did not run: free. 'stopped', with its worker: free. 'ran': charged as a retry. 'lost', with its worker or
-- lease: free once, and blamed. 'unknown', its name: free, and blamed. `reason` is what a blame is for, perhaps ''.
function lease.give_back(id, h, delay, how, reason, given_back)
  local paid = how ~= 'ran'
  if how == 'lost' then
    paid = h.free_used == '0'
    h.free_used = '1'
  end
  if how == 'lost' or how == 'stopped' then
    h.losses = h.losses + 1
  elseif how == 'ran' then
    h.losses = 0
  end
  if how == 'lost' or how == 'unknown' then
    h.blames = h.blames + 1
    if h.blames >= tonumber(h.max_deliveries) then
      local last = reason ~= '' and '; the last one: ' .. reason or ''
      local cause = how == 'lost' and 'poison' or 'unknown'
      lease.bury(id, h, cause .. ' poison: ' .. h.blames .. ' deliveries ended without a settle' .. last)
      return
    end
  end
  put(plan.held, id, h)
  lease.come_back(id, h, delay, paid, given_back)
end

-- Any outcome but ack.
function lease.settle_one(id, h, outcome, delay, text, given_back)
  lease.finish(id, partition_of(h.payload), h.owner)
  if outcome == 'fail' then
    order.count('failed', 1)
    lease.bury(id, h, text)
  elseif outcome == 'retry' then
    order.count('retried', 1)
    if text ~= '' then
      local _, _, _, rest = read(h.payload)
      h.payload = (rest and sub(h.payload, 1, rest - 1) or '{') .. text
    end
    h.losses = 0
    put(plan.held, id, h)
    lease.come_back(id, h, delay, false, given_back)
  else
    order.count('released', 1)
    lease.give_back(id, h, delay, outcome, text, given_back)
  end
end

-- Several at once: latest start tag first, so that they keep their order (R9); where tags are equal, as those of paid
-- tasks often are, the one delivered last goes first.
function lease.place_all(given_back)
  if #given_back > 1 then
    table.sort(given_back, function(a, b)
      if a.start ~= b.start then return a.start > b.start end
      return a.number > b.number
    end)
  end
  for i = 1, #given_back do order.place(given_back[i].id, given_back[i].paid) end
end

-- ARGV from `at`: n times id, token, outcome, delay, text. Answers n codes.
function lease.settle(at, n)
  local held, ids, partitions, given_back = plan.held, {}, {}, {}
  local codes, places, tokens_of, holders, of = {}, {}, {}, {}, {}
  for i = 1, n do ids[i] = ARGV[at + 5 * (i - 1)] end
  fetch(held, ids)
  for i = 1, n do
    -- Without unpacking the record, since an ack needs no more of it.
    local text = held.old[ids[i]]
    if text then
      local place, token, holder, rest = match(text, '^(%a) (%S+) %d+ %d+ %d+ %d %d+ %S+ (%S+) ()')
      places[i], tokens_of[i], holders[i] = place, token, holder
      of[i] = partition_of(text, rest)
      partitions[#partitions + 1] = of[i]
    end
  end
  fetch(plan.running, partitions)
  local acked = 0
  for i = 1, n do
    local id, from = ids[i], at + 5 * (i - 1)
    local place, token, planned = places[i], tokens_of[i], held.new[id]
    if planned ~= nil then place, token = planned and planned.place, planned and planned.token end -- named twice
    codes[i] = lease.standing(place, token, ARGV[from + 1])
    if codes[i] == 0 then
      if ARGV[from + 2] == 'ack' then
        lease.finish(id, of[i], holders[i])
        held.new[id] = false
        acked = acked + 1
      else
        lease.settle_one(id, held_of(id), ARGV[from + 2], tonumber(ARGV[from + 3]), ARGV[from + 4], given_back)
      end
    end
  end
  if acked > 0 then order.count('acked', acked) end
  lease.place_all(given_back)
  return codes
end

-- Settles all that an owner holds. Answers the ids.
function lease.settle_owner(name, outcome, delay, text)
  local ids, given_back = lease.owned(name, held_by(holding_of(name))), {}
  for i = 1, #ids do
    lease.settle_one(ids[i], held_of(ids[i]), outcome, delay, text, given_back)
  end
  lease.place_all(given_back)
  return ids
end

-- Takes a task out of `delayed`, to be placed.
function lease.end_delay(id, given_back)
  local h = held_of(id)
  put(plan.delayed, id, nil)
  if h and SET_OF[h.place] == 'delayed' then given_back[#given_back + 1] = lease.given(id, h, h.place == 'p') end
end

function lease.revoke(id, h, how, given_back)
  lease.finish(id, partition_of(h.payload), h.owner)
  lease.give_back(id, h, 0, how, '', given_back)
  h.token = '-'
end

-- The members of a sorted set of times that are due, as it will be after commit(): at most `limit`.
function lease.due_of(set, limit)
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
function lease.bring_due(limit)
  local expired, late = lease.due_of(plan.lease, limit), lease.due_of(plan.delayed, limit)
  if #expired == 0 and #late == 0 then return 0, 0 end
  local ids = {}
  for i = 1, #expired do ids[#ids + 1] = expired[i].id end
  for i = 1, #late do ids[#ids + 1] = late[i].id end
  fetch_all(plan.held, ids)
  local given_back, i, j = {}, 1, 1
  while i + j - 2 < limit and (expired[i] or late[j]) do
    if expired[i] and (not late[j] or expired[i].at <= late[j].at) then
      local id = expired[i].id
      local h = held_of(id)
      if h and h.place == 'l' then lease.revoke(id, h, 'lost', given_back) else put(plan.lease, id, nil) end
      i = i + 1
    else
      lease.end_delay(late[j].id, given_back)
      j = j + 1
    end
  end
  order.count('reclaimed', i - 1)
  lease.place_all(given_back)
  return i - 1, j - 1
end

-- Milliseconds until something is due; -1 for never. After commit().
function lease.next_due()
  local first = call('ZRANGE', key.lease, 0, 0, 'WITHSCORES')[2]
  local late = call('ZRANGE', key.delayed, 0, 0, 'WITHSCORES')[2]
  first, late = first and tonumber(first), late and tonumber(late)
  if late and not (first and first < late) then first = late end
  return first and math.max(first - now, 0) or -1
end

return lease
end)()
