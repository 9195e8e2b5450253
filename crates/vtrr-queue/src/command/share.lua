
-- share: sets what a partition is entitled to (R10).
-- ARGV: partition, share; 1 clears it.
-- Returns: {}.
local head, new = head_of(ARGV[1]), tonumber(ARGV[2])
local old = head.share
local function move(x) return new == old and x or V + (x - V) * old / new end
if queued(head) == 0 then
  if head.finish and head.finish <= V + 1 / old then
    head.finish = nil
  elseif head.finish and mode ~= 'all' then
    head.finish = move(head.finish)
  end
elseif mode ~= 'all' and head.old == 0 then
  local member = head.kind == 'g' and ghost(head) or head.id
  local start = score(queue, member)
  if start then put(queue, member, move(start)) end
  if head.finish then head.finish = move(head.finish) end
end
head.share = new
commit(new ~= 1, function()
  if new == 1 then call('HDEL', SHARE, head.partition) else call('HSET', SHARE, head.partition, ARGV[2]) end
end)
return {}
