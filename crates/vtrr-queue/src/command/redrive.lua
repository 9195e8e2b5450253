
-- redrive: puts dead letters back into the queue, as new arrivals.
-- ARGV: ids.
-- Returns: {flags}: 1 where the id was a dead letter with a payload.
local flags = {}
fetch(plan.held, ARGV)
for i = 1, #ARGV do
  local id = ARGV[i]
  local h = held_of(id)
  flags[i] = h and h.place == 'd' and h.payload ~= '' and 1 or 0
  if flags[i] == 1 then
    local payload = h.payload
    order.forget_dead(id)
    order.count('redriven', 1)
    order.placed = true
    local partition, weight, number = read(payload)
    if not partition then
      order.put_tag(id, order.V + 1, payload)
    else
      local head = order.head_of(partition)
      if mode == 'all' or order.unpaid(head) == 0 then order.arrive(head) end
      if mode == 'all' then
        order.put_tag(id, order.charge(head, weight), payload)
        head.old = head.old + 1
      else
        -- Behind everything that waits: written at the end of the lane, unless it becomes the head at once.
        if head.kind == '-' and head.old + head.lane + head.paid == 0 then
          head.kind, head.id = 'u', id
          order.put_tag(id, order.charge(head, weight), payload)
        else
          order.push_back(order.list_of(head, false), number .. ' ' .. id)
          put(plan.waiting, id, (pack(payload)))
          head.lane = head.lane + 1
        end
      end
    end
  end
end
commit(false)
return {flags}
