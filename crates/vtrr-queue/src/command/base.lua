-- base: what all scripts share. A script plans in its own memory, reading only, and writes everything in commit(), after
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

-- Overlays: hashes and sorted sets as they will be after commit(). `old` is what was read, `new` what is planned; in
-- both, false is a field that does not exist.

local function overlay(key, length) return {key = key, length = length, old = {}, new = {}} end
local queue, lease, delayed, dead, idle = overlay(QUEUE, 'ZCARD'), overlay(LEASE, 'ZCARD'), overlay(DELAYED, 'ZCARD'),
  overlay(DEAD, 'ZCARD'), overlay(IDLE, 'ZCARD')
local task, waiting, head_text, finish, held, owner, running, errors = overlay(TASK, 'HLEN'), overlay(WAITING, 'HLEN'),
  overlay(HEAD, 'HLEN'), overlay(FINISH, 'HLEN'), overlay(HELD, 'HLEN'), overlay(OWNER, 'HLEN'), overlay(RUNNING, 'HLEN'),
  overlay(ERROR, 'HLEN')
local overlays = {queue, task, waiting, head_text, finish, idle, lease, held, owner, running, delayed, dead, errors}

-- Reads many fields of a hash at once: at most 1,000 that are not known yet.
local function fetch(hash, fields, parse)
  local old, missing, n = hash.old, {}, 0
  for i = 1, #fields do
    local field = fields[i]
    if old[field] == nil then
      n = n + 1
      missing[n] = field
      old[field] = false
    end
  end
  if n == 0 then return end
  hash.read = true
  local values = call('HMGET', hash.key, unpack(missing))
  for i = 1, n do
    local value = values[i]
    if value then old[missing[i]] = parse and parse(value) or value end
  end
end

-- The same for any number of fields.
local function fetch_all(hash, fields, parse)
  for from = 1, #fields, 1000 do fetch(hash, {unpack(fields, from, math.min(from + 999, #fields))}, parse) end
end

local function get(hash, field, parse)
  local value = hash.new[field]
  if value == nil then
    value = hash.old[field]
    if value == nil then
      hash.read = true
      value = call('HGET', hash.key, field)
      if value and parse then value = parse(value) end
      hash.old[field] = value
    end
  end
  return value or nil
end

local function score(set, member)
  local value = set.new[member]
  if value == nil then
    value = set.old[member]
    if value == nil then
      set.read = true
      value = tonumber(call('ZSCORE', set.key, member) or nil) or false
      set.old[member] = value
    end
  end
  return value or nil
end

local function put(overlaid, field, value) overlaid.new[field] = value or false end

-- Writes a call with many arguments in pieces.
local function write(command, key, args)
  for from = 1, #args, 1000 do
    call(command, key, unpack(args, from, math.min(from + 999, #args)))
  end
end

local function write_removals(overlaid, command)
  local gone, n = {}, 0
  for field, value in pairs(overlaid.new) do
    if not value then
      n = n + 1
      gone[n] = field
    end
  end
  if n > 0 then write(command, overlaid.key, gone) end
end

local function write_hash(hash, format)
  local args, n = {}, 0
  for field, value in pairs(hash.new) do
    if value then
      args[n + 1], args[n + 2] = field, format and format(value) or value
      n = n + 2
    end
  end
  if n > 0 then write('HSET', hash.key, args) end
end

local function write_set(set)
  local args, n = {}, 0
  for member, value in pairs(set.new) do
    if value then
      args[n + 1], args[n + 2] = value, member
      n = n + 2
    end
  end
  if n > 0 then write('ZADD', set.key, args) end
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

-- "a" before "b" by bytes, as sorted sets compare. Lua's own < follows the server's locale, which mostly is bytewise too.
local bytewise = 'B' < 'a' and 'a-c' < 'ab'
local function before(a, b)
  if bytewise then return a < b end
  local shorter = math.min(#a, #b)
  for i = 1, shorter do
    local x, y = byte(a, i), byte(b, i)
    if x ~= y then return x < y end
  end
  return #a < #b
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

local function held_of(id) return get(held, id, parse_held) end

-- Owners: `request`, then each id it holds behind \0 and a sign: + if it came with that request.

local function parse_owner(text)
  local request, rest = match(text, '^([^%z]*)(.*)$')
  local holding = {request = request, ids = {}, last = {}, count = 0}
  for sign, id in string.gmatch(rest, '%z([+-])([^%z]*)') do
    holding.count = holding.count + 1
    holding.ids[holding.count] = id
    holding.last[id] = sign == '+'
  end
  return holding
end

-- `last` has the ids that are still held: whether they came with the last request.
local function format_owner(holding)
  local parts = {holding.request}
  for _, id in ipairs(holding.ids) do
    local last = holding.last[id]
    if last ~= nil then parts[#parts + 1] = (last and '\0+' or '\0-') .. id end
  end
  return table.concat(parts)
end

local function holding_of(name) return get(owner, name, parse_owner) end

-- The ids an owner holds, in order.
local function held_by(holding)
  local ids = {}
  for _, id in ipairs(holding and holding.ids or {}) do
    if holding.last[id] ~= nil then ids[#ids + 1] = id end
  end
  return ids
end
