
-- cancel: takes queued and delayed tasks out.
-- ARGV: ids.
-- Returns: {codes}: 0 done, 1 gone, 2 leased, 3 dead.
local codes = {}
fetch(held, ARGV, parse_held)
fetch(waiting, ARGV)
for i = 1, #ARGV do
  local id = ARGV[i]
  local h = held_of(id)
  local at = h and h.place
  if at == 'l' then
    codes[i] = 2
  elseif at == 'd' then
    codes[i] = 3
  elseif at == 'p' or at == 'r' then
    put(delayed, id, nil)
    put(held, id, nil)
    codes[i] = 0
  else
    codes[i] = remove_queued(id) and 0 or 1
  end
  if codes[i] == 0 then count('cancelled', 1) end
end
commit(false)
return {codes}
