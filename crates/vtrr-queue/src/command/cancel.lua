
-- cancel: takes queued and delayed tasks out.
-- ARGV: ids.
-- Returns: {codes}: 0 done, 1 gone, 2 leased, 3 dead.
local codes = {}
fetch(plan.held, ARGV)
fetch(plan.waiting, ARGV)
for i = 1, #ARGV do
  local id = ARGV[i]
  local h = held_of(id)
  local at = h and h.place
  if at == 'l' then
    codes[i] = 2
  elseif at == 'd' then
    codes[i] = 3
  elseif SET_OF[at] == 'delayed' then
    put(plan.delayed, id, nil)
    put(plan.held, id, nil)
    codes[i] = 0
  else
    codes[i] = order.remove_queued(id) and 0 or 1
  end
  if codes[i] == 0 then order.count('cancelled', 1) end
end
commit(false)
return {codes}
