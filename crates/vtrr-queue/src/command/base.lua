-- base: what all scripts share. A script plans in its own memory, reading only, and writes everything in commit(),
-- after every key it will write has been read with the command of its type: so an error changes nothing.
--
-- The other parts are modules: a function around each, whose functions and state stand in a table (order, lease, serve).
-- All functions are created in every call, and what they capture of the main chunk makes that dearer.
--
-- KEYS: the keys of keys.rs, in that order. The last three are two prefixes of list keys and a channel; lanes are named
--       in order.lua, in the queue's own slot.
-- Returns, where a command is refused: {"ERR", kind, message}.
local call, match, find, sub, byte, format = redis.call, string.match, string.find, string.sub, string.byte, string.format
local key = {
  queue = KEYS[1], virtual_time = KEYS[2], finish = KEYS[3], task = KEYS[4], waiting = KEYS[5], head = KEYS[6],
  idle = KEYS[7], lease = KEYS[8], held = KEYS[9], owner = KEYS[10], running = KEYS[11], delayed = KEYS[12],
  dead = KEYS[13], error = KEYS[14], share = KEYS[15], meta = KEYS[16], request = KEYS[17], answer = KEYS[18],
  sweeper = KEYS[19], lane = KEYS[20], paid = KEYS[21], wake = KEYS[22],
}

local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local meta = call('HMGET', key.meta, 'version', 'mode', 'serial', 'token')
if tonumber(meta[1] or 1) > 1 then
  return {'ERR', 'version', 'the queue has format version ' .. meta[1] .. '; this client knows version 1: upgrade it'}
end
local mode, serial, tokens = meta[2], tonumber(meta[3] or 0), tonumber(meta[4] or 0)
local tokens_before = tokens

-- A whole number to be joined with text: Lua itself writes 14 digits.
local function whole(n) return n < 1e14 and n or format('%.0f', n) end

-- The plan: hashes and sorted sets by name, as they will be after commit(). `old` is what was read, `new` what is
-- planned; in both, false is a field that does not exist.
local plan = setmetatable({}, {__index = function(all, name)
  local overlay = {key = key[name], old = {}, new = {}}
  all[name] = overlay
  return overlay
end})

-- Reads many fields of a hash at once: at most 1,000 that are not known yet.
local function fetch(hash, fields)
  local old, missing, n = hash.old, {}, 0
  for i = 1, #fields do
    local field = fields[i]
    if old[field] == nil then
      n = n + 1
      missing[n] = field
    end
  end
  if n == 0 then return end
  hash.read = true
  local values = call('HMGET', hash.key, unpack(missing))
  for i = 1, n do old[missing[i]] = values[i] end
end

-- The same for any number of fields.
local function fetch_all(hash, fields)
  for from = 1, #fields, 1000 do fetch(hash, {unpack(fields, from, math.min(from + 999, #fields))}) end
end

local function get(hash, field)
  local value = hash.new[field]
  if value == nil then
    value = hash.old[field]
    if value == nil then
      value = call('HGET', hash.key, field)
      hash.old[field], hash.read = value, true
    end
  end
  return value or nil
end

local function score(set, member)
  local value = set.new[member]
  if value == nil then
    value = set.old[member]
    if value == nil then
      value = tonumber(call('ZSCORE', set.key, member) or nil) or false
      set.old[member], set.read = value, true
    end
  end
  return value or nil
end

local function put(overlay, field, value) overlay.new[field] = value or false end

-- Writes a call with many arguments in pieces.
local function write(command, name, args)
  for from = 1, #args, 1000 do
    call(command, name, unpack(args, from, math.min(from + 999, #args)))
  end
end

-- The prefix of a payload: partition as JSON, weight, `at`, serial, and where the rest starts, at its comma. None for what
-- 0.1.0 stored.
local function prefix(payload)
  if not payload then return nil end
  local json, weight, at, number, rest =
    match(payload, '^{"partition_key":("[^"\\]*"),"weight":(%d+),"at":(%d+),"serial":(%d+)(),')
  if json then return json, weight, at, number, rest end
  -- An escaped partition. Its end is the first `","weight":`, since a quote inside is escaped.
  if sub(payload, 1, 18) ~= '{"partition_key":"' then return nil end
  local close = find(payload, '","weight":', 19, true)
  if not close then return nil end
  weight, at, number, rest = match(payload, '^","weight":(%d+),"at":(%d+),"serial":(%d+)(),', close)
  if weight then return sub(payload, 18, close), weight, at, number, rest end
end

-- Partition, weight and serial of a payload, and where what the producer wrote starts; none for what 0.1.0 stored.
local function read(payload)
  local json, weight, _, number, rest = prefix(payload)
  if not json then return nil end
  local partition = sub(json, 2, -2)
  if find(partition, '\\', 1, true) then
    local ok, decoded = pcall(cjson.decode, '[' .. json .. ']')
    if not ok then return nil end
    partition = decoded[1]
  end
  return partition, tonumber(weight), number, rest + 1
end

-- The partition alone, for less; of a payload that starts at `from`, if not at 1.
local function partition_of(text, from)
  if not text then return nil end
  return match(text, '^{"partition_key":"([^"\\]*)","weight":%d+,"at":%d+,"serial":%d+,', from) or (read(sub(text, from or 1)))
end

-- Waiting tasks: the payload without the names of its prefix: `serial weight at partition,rest`, the partition as JSON.

-- That text, and the serial; none for what 0.1.0 stored.
local function pack(payload)
  local json, weight, at, number, rest = prefix(payload)
  if not json then return nil end
  return number .. ' ' .. weight .. ' ' .. at .. ' ' .. json .. sub(payload, rest), number
end

-- Payload, weight, serial.
local function unpack_waiting(text)
  local number, weight, at, json, rest = match(text, '^(%d+) (%d+) (%d+) ("[^"\\]*")()')
  if not number then
    -- The partition has escapes: it ends with the first quote that is none.
    local from
    number, weight, at, from = match(text, '^(%d+) (%d+) (%d+) ()')
    local last = find(text, '["\\]', from + 1)
    while byte(text, last) ~= 34 do last = find(text, '["\\]', last + 2) end
    json, rest = sub(text, from, last), last + 1
  end
  local payload = '{"partition_key":' .. json .. ',"weight":' .. weight .. ',"at":' .. at .. ',"serial":' .. number .. sub(text, rest)
  return payload, tonumber(weight), number
end

-- Held tasks: `place token deliveries blames losses free_used max_deliveries start owner payload`. In the plan they are text
-- until held_of() is asked for one.

-- The set that knows a held task besides, by its place; none where it is queued.
local SET_OF = {l = 'lease', p = 'delayed', r = 'delayed', d = 'dead'}

local function new_held(max_deliveries)
  return {
    place = 'q', token = '-', deliveries = 0, blames = 0, losses = 0, free_used = '0', max_deliveries = max_deliveries,
    start = '0', owner = '-', payload = '',
  }
end

local function held_of(id)
  local held = plan.held
  local text = get(held, id)
  if type(text) ~= 'string' then return text end
  local place, token, deliveries, blames, losses, free_used, max_deliveries, start, holder, rest =
    match(text, '^(%a) (%S+) (%d+) (%d+) (%d+) (%d) (%d+) (%S+) (%S+) ()')
  local h = {
    place = place, token = token, deliveries = tonumber(deliveries), blames = tonumber(blames), losses = tonumber(losses),
    free_used = free_used, max_deliveries = max_deliveries, start = start, owner = holder, payload = sub(text, rest),
  }
  if held.new[id] then held.new[id] = h else held.old[id] = h end
  return h
end

-- Owners: `request`, then each id it holds behind \0 and a sign: + if it came with that request.

-- `last` has the ids that are still held: whether they came with the last request.
local function holding_of(name)
  local text = get(plan.owner, name)
  if type(text) ~= 'string' then return text end
  local request, rest = match(text, '^([^%z]*)(.*)$')
  local holding = {request = request, ids = {}, last = {}, count = 0}
  for sign, id in string.gmatch(rest, '%z([+-])([^%z]*)') do
    holding.count = holding.count + 1
    holding.ids[holding.count] = id
    holding.last[id] = sign == '+'
  end
  plan.owner.old[name] = holding
  return holding
end

-- The ids an owner holds, in order.
local function held_by(holding)
  local ids = {}
  for _, id in ipairs(holding and holding.ids or {}) do
    if holding.last[id] ~= nil then ids[#ids + 1] = id end
  end
  return ids
end
