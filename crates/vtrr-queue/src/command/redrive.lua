
-- redrive: puts dead letters back into the queue, as new arrivals.
-- ARGV: ids.
-- Returns: {flags}: 1 where the id was a dead letter with a payload.
local flags = {}
fetch(held, ARGV, parse_held)
for i = 1, #ARGV do
  local id = ARGV[i]
  local h = held_of(id)
  flags[i] = h and h.place == 'd' and h.payload ~= '' and 1 or 0
  if flags[i] == 1 then
    local payload = h.payload
    forget_dead(id)
    count('redriven', 1)
    placed = true
    local partition, weight, number = read(payload)
    if not partition then
      put_tag(id, V + 1, payload)
    else
      local head = head_of(partition)
      if mode == 'all' or unpaid(head) == 0 then arrive(head) end
      if mode == 'all' then
        put_tag(id, charge(head, weight), payload)
        head.old = head.old + 1
      else
        -- Behind everything that waits: written at the end of the lane, unless it becomes the head at once.
        if head.kind == '-' and head.old + head.lane + head.paid == 0 then
          head.kind, head.id = 'u', id
          put_tag(id, charge(head, weight), payload)
        else
          local list = list_of(head, false)
          check_list(list)
          list.back = list.back or {}
          list.back[#list.back + 1] = number .. ' ' .. id
          put(waiting, id, payload)
          head.lane = head.lane + 1
        end
      end
    end
  end
end
commit(false, function()
  for i = 1, #head_list do
    local list = head_list[i].lane_list
    if list and list.back then write('RPUSH', list.key, list.back) end
  end
end)
return {flags}
