
-- commit: the end of a command: what becomes of the partitions' records, and all writes.

local write_overlay, commit = (function()

local function format_head(head)
  if head.paid == 0 and head.old == 0 then return head.kind .. head.lane .. ' ' .. head.id end
  return head.kind .. head.lane .. ',' .. head.paid .. ',' .. head.old .. ',' .. head.old_paid .. ' ' .. head.id
end

-- R6: idle partitions whose F V has passed; bounded.
local function forget_idle()
  if order.served == 0 then return end
  local V, idle, finish = order.V, plan.idle, plan.finish
  idle.read = true
  local limit, known = 2 * order.served + 8, 0
  for _ in pairs(idle.new) do known = known + 1 end
  local found, passed = call('ZRANGEBYSCORE', key.idle, '-inf', V, 'LIMIT', 0, limit + known), {}
  for i = 1, #found do
    if #passed < limit and idle.new[found[i]] == nil then passed[#passed + 1] = found[i] end
  end
  for from = 1, #passed, 1000 do
    local some = {unpack(passed, from, math.min(from + 999, #passed))}
    local finishes, shares = call('HMGET', key.finish, unpack(some)), call('HMGET', key.share, unpack(some))
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
  local head_list, head_text, finish, idle = order.head_list, plan.head.new, plan.finish.new, plan.idle.new
  for i = 1, #head_list do
    local head = head_list[i]
    local partition = head.partition
    if head.kind == '-' and order.queued(head) == 0 then
      if head.text then head_text[partition] = false end
      if head.finish and head.finish <= order.V + 1 / head.share then head.finish = nil end
      idle[partition] = head.finish and head.finish - 1 / head.share or false
    else
      local text = format_head(head)
      if text ~= head.text then head_text[partition] = text end
      if not head.text then idle[partition] = false end
    end
    if head.finish ~= head.finish_before then finish[partition] = head.finish or false end
    if head.lane == 0 and head.had_lane then order.check_list(order.list_of(head, false)) end
    if head.paid == 0 and head.had_paid then order.check_list(order.list_of(head, true)) end
  end
end

local function each_list(act)
  for i = 1, #order.head_list do
    local head = order.head_list[i]
    if head.lane_list then act(head.lane_list, head.lane) end
    if head.paid_list then act(head.paid_list, head.paid) end
  end
end

-- What goes from the front of a lane, and what comes to it. Cutting it twice would lose tasks, so it is the last write of
-- all, but where something comes to that front.
local function cut_lane(list, live_ones)
  if live_ones == 0 then return end
  if list.taken == 1 then
    call('LPOP', list.key)
  elseif list.taken > 0 then
    call('LTRIM', list.key, list.taken, -1)
  end
  list.taken = 0
end

local function fill_lane(list, live_ones)
  if live_ones == 0 then return end
  if list.front then
    cut_lane(list, live_ones)
    write('LPUSH', list.key, list.front)
  end
  if list.back then write('RPUSH', list.key, list.back) end
end

local function drop_lane(list, live_ones)
  if live_ones == 0 and list.read then call('UNLINK', list.key) end
end

-- A server keeps up to some hundred short members as one list, and walks it for each. A long one, put in and taken out
-- again, makes a table of it for good: worth it where a call writes many. No task and no partition can have its name.
local SMALL = {queue = true, lease = true, head = true, finish = true, running = true}
local LONG = order.LONG

local SETS = {queue = true, lease = true, delayed = true, dead = true, idle = true}

local function format_held(h)
  return table.concat({h.place, h.token, h.deliveries, h.blames, h.losses, h.free_used, h.max_deliveries, h.start, h.owner, h.payload}, ' ')
end

local function format_owner(holding)
  local parts = {holding.request}
  for _, id in ipairs(holding.ids) do
    local last = holding.last[id]
    if last ~= nil then parts[#parts + 1] = (last and '\0+' or '\0-') .. id end
  end
  return table.concat(parts)
end

-- Writes what comes to one overlay, and answers what goes.
local function write_new(name)
  local overlay, is_set = plan[name], SETS[name]
  local to_text = name == 'held' and format_held or format_owner -- the only ones with records in them
  local gone, n, args, m = {}, 0, {}, 0
  for field, value in pairs(overlay.new) do
    if not value then
      n = n + 1
      gone[n] = field
    else
      if is_set then
        field, value = value, field
      elseif type(value) == 'table' then
        value = to_text(value)
      end
      args[m + 1], args[m + 2] = field, value
      m = m + 2
    end
  end
  if m > 0 then write(is_set and 'ZADD' or 'HSET', overlay.key, args) end
  if m >= 32 and SMALL[name] then
    if is_set then call('ZADD', overlay.key, 0, LONG) else call('HSET', overlay.key, LONG, 0) end
    call(is_set and 'ZREM' or 'HDEL', overlay.key, LONG)
  end
  return gone
end

local function write_gone(name, gone)
  if #gone > 0 then write(SETS[name] and 'ZREM' or 'HDEL', plan[name].key, gone) end
end

local function write_overlay(name) write_gone(name, write_new(name)) end

-- The order of the writes matters where a server that died in the middle of writing them to its file runs a part of them
-- later: what says where a task is comes after its payload is there, and goes before the payload goes, or else says
-- nothing; the sweep mends the rest. `head` stands between, with the empty lanes; `finish` and `idle` at the end.
local PAYLOADS = {'task', 'waiting'}
local COMES = {'lease', 'delayed', 'dead', 'held', 'queue', 'running', 'owner', 'error'}
local GOES = {'held', 'error', 'task', 'waiting', 'queue', 'lease', 'delayed', 'dead', 'owner', 'running'}

-- Dead letters beyond the 10,000 youngest go, as many as come; at most 1,000 per call.
local function forget_oldest_dead()
  local dead, more = plan.dead, 0
  for id, at in pairs(dead.new) do more = more + (at and 1 or 0) end
  if more == 0 then return end
  dead.read, plan.error.read = true, true
  call('HLEN', key.error)
  local too_many = math.min(call('ZCARD', key.dead) + more - 10000, 1000)
  if too_many <= 0 then return end
  local oldest = call('ZRANGE', key.dead, 0, too_many - 1)
  fetch(plan.held, oldest)
  for i = 1, #oldest do
    if dead.new[oldest[i]] == nil then order.forget_dead(oldest[i]) end
  end
end

-- Writes the plan. `first` and `last` write what a command has beside it. With `grows` `first` must start with a write that
-- a full server refuses; else the first write is one that it lets through, and then it lets all of them through.
local function commit(grows, first, last)
  order.on_tag = false
  close_heads()
  forget_oldest_dead()
  forget_idle()
  local gone, totals, sums = {}, {}, {}
  for name, overlay in pairs(plan) do
    if next(overlay.new) ~= nil then
      if not overlay.read then call(SETS[name] and 'ZCARD' or 'HLEN', overlay.key) end
      gone[name] = {} -- what goes from it; known once what comes is written
    end
  end
  for total, n in pairs(order.totals) do
    if n ~= 0 then totals[#totals + 1] = total end
  end
  if #totals > 0 then
    local before = call('HMGET', key.meta, unpack(totals))
    for i = 1, #totals do
      sums[2 * i - 1], sums[2 * i] = totals[i], format('%.0f', tonumber(before[i] or 0) + order.totals[totals[i]])
    end
  end
  if tokens ~= tokens_before then sums[#sums + 1], sums[#sums + 2] = 'token', format('%.0f', tokens) end
  -- What is read after the first write is read before it too, in case that is not allowed.
  call('EXISTS', key.queue)

  if not grows then call('HDEL', key.meta, '') end
  if first then first() end
  if order.missing then call('HSET', key.meta, 'mend', 1, 'sweep_waiting', 0) end
  local function write_comes(names)
    for i = 1, #names do
      local name = names[i]
      if gone[name] then gone[name] = write_new(name) end
    end
  end
  write_comes(PAYLOADS)
  each_list(fill_lane)
  write_comes(COMES)
  for i = 1, #GOES do
    local name = GOES[i]
    if gone[name] then write_gone(name, gone[name]) end
  end
  each_list(drop_lane)
  if gone.head then write_overlay('head') end
  if call('EXISTS', key.queue) == 0 then
    -- R5.
    call('DEL', key.virtual_time, key.finish, key.idle)
    if call('EXISTS', key.waiting) == 0 then call('DEL', key.head) end
  else
    write_overlay('finish')
    write_overlay('idle')
    if order.V ~= order.V_before then call('SET', key.virtual_time, order.V) end
  end
  if #sums > 0 then call('HSET', key.meta, unpack(sums)) end
  if last then last() end
  each_list(cut_lane)
  if order.placed then redis.pcall('PUBLISH', key.wake, '') end
end

return write_overlay, commit
end)()
