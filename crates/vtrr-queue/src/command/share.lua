
-- share: sets what a partition is entitled to (R10).
-- ARGV: partition, share; 1 clears it.
-- Returns: {}.
local head, new = order.head_of(ARGV[1]), tonumber(ARGV[2])
local old = head.share
local function move(x) return new == old and x or order.V + (x - order.V) * old / new end
if order.queued(head) == 0 then
  if head.finish and head.finish <= order.V + 1 / old then
    head.finish = nil
  elseif head.finish and mode ~= 'all' then
    head.finish = move(head.finish)
  end
elseif mode ~= 'all' and head.old == 0 then
  local member = head.kind == 'g' and order.ghost(head) or head.id
  local start = score(plan.queue, member)
  if start then put(plan.queue, member, move(start)) end
  if head.finish then head.finish = move(head.finish) end
end
head.share = new
commit(new ~= 1, function()
  if new == 1 then call('HDEL', key.share, head.partition) else call('HSET', key.share, head.partition, ARGV[2]) end
end)
return {}
