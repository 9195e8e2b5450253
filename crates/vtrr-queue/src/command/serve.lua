
-- serve: taking tasks off the order: the smallest tags of the sorted set and those given in this call, merged.

local serve = (function()

local serve, queue, task = {}, plan.queue, plan.task
local candidates, candidate, window_from, window_want = {}, 1, 0, 0 -- the window on the sorted set: members and scores
local partition_by = {} -- of the candidates read so far
local heap, heap_size = {}, 0 -- tags given in this call: {start, id, partition}

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

local function heap_before(a, b)
  local x, y = a[1], b[1]
  return x < y or x == y and before(a[2], b[2])
end

function serve.push(start, id, partition)
  heap_size = heap_size + 1
  local at, item = heap_size, {start, id, partition}
  while at > 1 do
    local parent = (at - at % 2) / 2
    if not heap_before(item, heap[parent]) then break end
    heap[at] = heap[parent]
    at = parent
  end
  heap[at] = item
end

local function heap_pop()
  local last = heap[heap_size]
  heap[heap_size] = nil
  heap_size = heap_size - 1
  if heap_size == 0 then return end
  local at = 1
  while true do
    local child = 2 * at
    if child > heap_size then break end
    if child < heap_size and heap_before(heap[child + 1], heap[child]) then child = child + 1 end
    if not heap_before(heap[child], last) then break end
    heap[at] = heap[child]
    at = child
  end
  heap[at] = last
end

-- Reads the next candidates, their payloads, partitions and the first waiting tasks behind each of them: each kind in
-- one call, and one per lane.
local function read_window()
  local size = math.max(math.min(window_want, 25), 1)
  candidates = call('ZRANGE', key.queue, window_from, window_from + size - 1, 'WITHSCORES')
  queue.read = true
  candidate = 1
  window_from = window_from + size
  local ids, n, new = {}, 0, queue.new
  for i = 1, #candidates, 2 do
    local id = candidates[i]
    if new[id] == nil and byte(id) ~= 0 then
      n = n + 1
      ids[n] = id
    end
  end
  if n == 0 then return end
  fetch(task, ids)
  fetch(plan.held, ids)
  local partitions, count, payloads = {}, 0, task.old
  for i = 1, n do
    local partition = partition_of(payloads[ids[i]])
    if partition then
      count = count + 1
      partitions[count] = partition
      partition_by[ids[i]] = partition
    end
  end
  if count == 0 then return end
  order.load_heads(partitions)
  fetch(plan.running, partitions)
  local each = math.min(math.ceil(window_want / n), 16)
  local heads, next_ids = order.heads, {}
  for i = 1, count do
    local head = heads[partitions[i]]
    if head.lane > 0 and head.paid == 0 and head.old == 0 then
      local list = order.list_of(head, false)
      if not list.got then order.read_list(list, math.min(each, head.lane), next_ids) end
    end
  end
  fetch(plan.waiting, next_ids)
  fetch(task, next_ids)
end

-- The smallest tag, without taking it: start, id, partition if known, whether it is on the heap.
function serve.first()
  local top
  while true do
    local id = candidates[candidate]
    top = heap[1]
    if not id then
      if window_from > 0 and #candidates == 0 then break end
      read_window()
    elseif queue.new[id] ~= nil then
      candidate = candidate + 2
    else
      local start = tonumber(candidates[candidate + 1])
      if top and (top[1] < start or top[1] == start and before(top[2], id)) then break end
      return start, id, partition_by[id], false
    end
  end
  if top then return top[1], top[2], top[3], true end
end

-- Gets ready to serve about `want` tasks.
function serve.begin(want)
  window_want = want
  for id, start in pairs(queue.new) do
    if start then serve.push(start, id, partition_of(get(task, id))) end
  end
  order.on_tag = serve.push
end

-- Takes the smallest tag (R4): id, start, payload, partition; nil if there is none, or only cancelled ones within reach.
function serve.take()
  while true do
    local start, id, partition, on_heap = serve.first()
    if not id then return nil end
    local is_ghost = byte(id) == 0
    if is_ghost and order.skips == 0 then return nil end
    if on_heap then heap_pop() else candidate = candidate + 2 end
    queue.new[id] = false
    if id == order.LONG then
      -- Left by a part of a transaction.
    elseif is_ghost then
      local head = order.head_of(sub(id, 2))
      head.kind = '-'
      order.promote(head)
    else
      if start > order.V then order.V = start end
      local payload = get(task, id)
      task.new[id] = false
      if partition then
        local head = order.heads[partition]
        order.untagged(head, id)
        order.promote(head)
      end
      window_want = window_want - 1
      return id, start, payload, partition
    end
  end
end

return serve
end)()
