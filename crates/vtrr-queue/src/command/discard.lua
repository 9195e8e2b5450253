
-- discard: deletes dead letters.
-- ARGV: ids.
-- Returns: {flags}: 1 where the id was a dead letter.
local flags = {}
fetch(held, ARGV, parse_held)
for i = 1, #ARGV do
  local h = held_of(ARGV[i])
  flags[i] = h and h.place == 'd' and 1 or 0
  if flags[i] == 1 then forget_dead(ARGV[i]) end
end
commit(false)
return {flags}
