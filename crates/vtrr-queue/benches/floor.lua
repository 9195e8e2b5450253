-- The least that a dequeue with acks can cost in this layout: the same reads and writes on the same keys, each kind in one
-- call, and nothing else. No rules, no checks, no second mode, no owners, no tasks that come back.
-- ARGV: n, ids of the last batch. Returns: deliveries: {id, token, payload}.
local call, match = redis.call, string.match
local n, done = tonumber(ARGV[1]), {unpack(ARGV, 2)}
local QUEUE, FINISH, TASK, WAITING, HEAD, LEASE, HELD, RUNNING, SHARE, LANE =
  KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[8], KEYS[9], KEYS[11], KEYS[15], KEYS[20]

if #done > 0 then
  local held, partitions, counts = call('HMGET', HELD, unpack(done)), {}, {}
  for i = 1, #done do
    local _, partition = match(held[i], '^%a (%S+) %d+ %d+ %d %d+ %S+ %S+ {"partition_key":"([^"]*)"')
    partitions[i] = partition
  end
  call('HMGET', RUNNING, unpack(partitions))
  for i = 1, #done do counts[2 * i - 1], counts[2 * i] = partitions[i], 0 end
  call('ZREM', LEASE, unpack(done))
  call('HDEL', HELD, unpack(done))
  call('HSET', RUNNING, unpack(counts))
end

local ids, partitions, lanes, next_ids = {}, {}, {}, {}
local found = call('ZRANGE', QUEUE, 0, n - 1, 'WITHSCORES')
for i = 1, n do ids[i] = found[2 * i - 1] end
local payloads = call('HMGET', TASK, unpack(ids))
call('HMGET', HELD, unpack(ids))
for i = 1, n do partitions[i] = match(payloads[i], '^{"partition_key":"([^"]*)"') end
local heads, finishes = call('HMGET', HEAD, unpack(partitions)), call('HMGET', FINISH, unpack(partitions))
call('HMGET', SHARE, unpack(partitions))
call('HMGET', RUNNING, unpack(partitions))
for i = 1, n do
  lanes[i] = LANE .. partitions[i]
  next_ids[i] = match(call('LINDEX', lanes[i], 0), ' (.*)')
end
local waiting = call('HMGET', WAITING, unpack(next_ids))
call('HMGET', TASK, unpack(next_ids))

local tags, leases, tasks, held, records, finish, running, deliveries = {}, {}, {}, {}, {}, {}, {}, {}
for i = 1, n do
  local a, b, token = 2 * i - 1, 2 * i, '1764453515000123-' .. i
  tags[a], tags[b] = finishes[i], next_ids[i]
  leases[a], leases[b] = 1764453545000, ids[i]
  local serial, weight, at, json, rest = match(waiting[i], '^(%d+) (%d+) (%d+) ("[^"]*")(.*)')
  tasks[a], tasks[b] = next_ids[i],
    '{"partition_key":' .. json .. ',"weight":' .. weight .. ',"at":' .. at .. ',"serial":' .. serial .. rest
  held[a], held[b] = ids[i], 'l ' .. token .. ' 1 0 0 5 ' .. found[b] .. ' - ' .. payloads[i]
  records[a], records[b] = partitions[i], 'u' .. match(heads[i], '^u(%d+)') - 1 .. ' ' .. next_ids[i]
  finish[a], finish[b] = partitions[i], finishes[i] + weight
  running[a], running[b] = partitions[i], 1
  deliveries[i] = {ids[i], token, payloads[i]}
end
call('ZREM', QUEUE, unpack(ids))
call('HDEL', TASK, unpack(ids))
call('HDEL', WAITING, unpack(next_ids))
for i = 1, n do call('LPOP', lanes[i]) end
call('ZADD', QUEUE, unpack(tags))
call('ZADD', LEASE, unpack(leases))
call('HSET', TASK, unpack(tasks))
call('HSET', HELD, unpack(held))
call('HSET', HEAD, unpack(records))
call('HSET', FINISH, unpack(finish))
call('HSET', RUNNING, unpack(running))
return deliveries
