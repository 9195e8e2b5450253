
-- serve: taking tasks off the order: the smallest tags of the sorted set and those given in this call, merged.

local candidates, candidate, window_from, window_want = {}, 1, 0, 0
local partition_by = {} -- of the candidates read so far
local heap, heap_size = {}, 0

local function heap_before(a, b)
  local x, y = a[1], b[1]
  return x < y or x == y and before(a[2], b[2])
end

local function heap_push(start, id, partition)
  heap_size = heap_size + 1
  local at, item = heap_size, {start, id, partition}
  while at > 1 do
    local parent = math.floor(at / 2)
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
  candidates = call('ZRANGE', QUEUE, window_from, window_from + size - 1, 'WITHSCORES')
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
  fetch(held, ids, parse_held)
  local partitions, count_of, tasks = {}, 0, task.old
  for i = 1, n do
    local partition = read(tasks[ids[i]])
    if partition then
      count_of = count_of + 1
      partitions[count_of] = partition
      partition_by[ids[i]] = partition
    end
  end
  if count_of == 0 then return end
  load_heads(partitions)
  fetch(running, partitions)
  local each = math.min(math.ceil(window_want / n), 16)
  local next_ids = {}
  for i = 1, count_of do
    local head = heads[partitions[i]]
    if head.lane > 0 and head.paid == 0 and head.old == 0 then
      local list = list_of(head, false)
      if not list.got then read_list(list, math.min(each, head.lane), next_ids) end
    end
  end
  fetch(waiting, next_ids)
  fetch(task, next_ids)
end

-- The smallest tag, without taking it: start, id, partition if known, whether it is on the heap.
local function first_tag()
  while true do
    local id = candidates[candidate]
    if not id then
      if window_from > 0 and #candidates == 0 then break end
      read_window()
    elseif queue.new[id] ~= nil then
      candidate = candidate + 2
    else
      local start, top = tonumber(candidates[candidate + 1]), heap[1]
      if top and (top[1] < start or top[1] == start and before(top[2], id)) then break end
      return start, id, partition_by[id], false
    end
  end
  local top = heap[1]
  if top then return top[1], top[2], top[3], true end
end

-- Gets ready to serve about `want` tasks.
local function begin_serving(want)
  window_want = want
  for id, start in pairs(queue.new) do
    if start then heap_push(start, id, read(get(task, id))) end
  end
  on_tag = heap_push
end

-- Takes the smallest tag (R4): id, start, payload, partition; nil if there is none, or only cancelled ones within reach.
local function take()
  while true do
    local start, id, partition, on_heap = first_tag()
    if not id then return nil end
    local is_ghost = byte(id) == 0
    if is_ghost and skips == 0 then return nil end
    if on_heap then heap_pop() else candidate = candidate + 2 end
    queue.new[id] = false
    if is_ghost then
      local head = head_of(sub(id, 2))
      head.kind = '-'
      promote(head)
    else
      if start > V then V = start end
      local payload = get(task, id)
      task.new[id] = false
      if partition then
        local head = heads[partition]
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
  if call('EXISTS', QUEUE) == 1 or call('EXISTS', WAITING) == 0 then return end
  local found = call('HSCAN', HEAD, 0, 'COUNT', 100)[2]
  for i = 1, math.min(#found, 200), 2 do
    local head = head_of(found[i])
    if not (head.kind ~= '-' and queue.new[head.id]) then
      head.kind, head.id, head.old, head.old_paid = '-', '', 0, 0
      promote(head)
    end
  end
end
