
-- dead_letters: lists dead letters, oldest first.
-- ARGV: offset, limit.
-- Returns: {{id, time of death (ms), deliveries, cause and error, payload}}.
local found = call('ZRANGE', key.dead, ARGV[1], tonumber(ARGV[1]) + tonumber(ARGV[2]) - 1, 'WITHSCORES')
local ids, letters = {}, {}
for i = 1, #found, 2 do ids[#ids + 1] = found[i] end
fetch(plan.held, ids)
fetch(plan.error, ids)
for i = 1, #ids do
  local h = held_of(ids[i])
  if h and h.place == 'd' then letters[#letters + 1] = {ids[i], tonumber(found[2 * i]), h.deliveries, get(plan.error, ids[i]) or '', h.payload} end
end
return letters
