
-- discard: deletes dead letters.
-- ARGV: ids.
-- Returns: {flags}: 1 where the id was a dead letter.
local flags = {}
fetch(plan.held, ARGV)
for i = 1, #ARGV do
  local h = held_of(ARGV[i])
  flags[i] = h and h.place == 'd' and 1 or 0
  if flags[i] == 1 then order.forget_dead(ARGV[i]) end
end
commit(false)
return {flags}
