
-- dequeue: settles, gives back what the owner lost, brings back what is due, hands out the next tasks in order.
-- ARGV: n, lease (ms), max_deliveries, owner or '', request id, number of held ids, number of settlements; the held ids;
--       per settlement: id, token, outcome, delay (ms), text.
-- Returns: {settled codes, ms until something is due or -1, 1 if there is more, deliveries: {id, token, count, payload}}.
local n, lease_ms, max_deliveries, name, request = tonumber(ARGV[1]), tonumber(ARGV[2]), ARGV[3], ARGV[4], ARGV[5]
local named, settlements = tonumber(ARGV[6]), tonumber(ARGV[7])
local deliveries = {}
local codes = settle(8 + named, settlements)
local holding = name ~= '' and holding_of(name)
local repeated = holding and holding.request == request
if repeated or n == 0 then next_due() end -- see commit

if repeated then
  for _, id in ipairs(held_by(holding)) do
    local h = holding.last[id] and held_of(id)
    if h and h.place == 'l' then deliveries[#deliveries + 1] = {id, h.token, h.deliveries, h.payload} end
  end
  commit(false)
  return {codes, next_due(), 0, deliveries}
end

if holding then
  local keep, lost, given_back = {}, {}, {}
  for i = 8, 7 + named do keep[ARGV[i]] = true end
  for _, id in ipairs(held_by(holding)) do
    if not keep[id] then lost[#lost + 1] = id end
  end
  fetch_all(held, lost, parse_held)
  for i = 1, #lost do
    count('released', 1)
    local h = held_of(lost[i])
    if h then revoke(lost[i], h, false, given_back) end
  end
  place_all(given_back)
end

local reclaimed, back = bring_due(100)
heal_stuck()
begin_serving(n)
local bytes, deadline = 0, string.format('%.0f', now + lease_ms)
local holder = name ~= '' and name or '-'
local stamp = time[1] .. string.format('%06d', time[2]) .. '-'
while #deliveries < n and served < n + 100 and bytes < 4194304 do
  local id, start, payload, partition = take()
  if not id then break end
  served = served + 1
  if payload then
    bytes = bytes + #payload
    tokens = tokens + 1
    local token = stamp .. string.format('%.0f', tokens)
    local h = held_of(id)
    if (h and h.place ~= 'q' and h.place ~= 'Q') or (not partition and get(waiting, id)) then
      -- 0.1.0 queued the id while ours was busy: both run.
      id = id .. '~' .. token
      h = nil
    end
    h = h or new_held(max_deliveries)
    h.place, h.token, h.deliveries, h.max_deliveries = 'l', token, h.deliveries + 1, max_deliveries
    h.start, h.owner, h.payload = string.format('%.17g', start), holder, payload
    held.new[id] = h
    lease.new[id] = deadline
    if partition then running.new[partition] = (tonumber(get(running, partition)) or 0) + 1 end
    deliveries[#deliveries + 1] = {id, token, h.deliveries, payload}
  else
    local h = held_of(id) or new_held(max_deliveries)
    h.token = '-'
    bury(id, h, 'lost: the task was queued but its payload is missing')
  end
end
count('delivered', #deliveries)
local more = reclaimed + back == 100
if #deliveries < n and first_tag() then more = true end

if name ~= '' then
  local kept = held_by(get(owner, name))
  holding = {request = request, ids = kept, last = {}}
  for i = 1, #kept do holding.last[kept[i]] = false end
  for i = 1, #deliveries do
    local id = deliveries[i][1]
    kept[#kept + 1] = id
    holding.last[id] = true
  end
  put(owner, name, #kept > 0 and holding)
end
commit(false)
if #deliveries > 0 then call('HSET', META, 'token', string.format('%.0f', tokens)) end
return {codes, next_due(), more and 1 or 0, deliveries}
