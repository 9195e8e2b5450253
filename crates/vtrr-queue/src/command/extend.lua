
-- extend: moves the deadlines of leases.
-- ARGV: lease (ms), owner or ''; per lease: id, token.
-- Returns: {codes}: 0 done, 1 gone, 2 lost.
local deadline, codes = now + tonumber(ARGV[1]), {}
if ARGV[2] ~= '' then
  for i, id in ipairs(lease.owned(ARGV[2], held_by(holding_of(ARGV[2])))) do
    put(plan.lease, id, deadline)
    codes[i] = 0
  end
else
  local ids = {}
  for i = 3, #ARGV, 2 do ids[#ids + 1] = ARGV[i] end
  fetch(plan.held, ids)
  for i = 1, #ids do
    local place, token = match(plan.held.old[ids[i]] or '', '^(%a) (%S+) ')
    codes[i] = lease.standing(place, token, ARGV[2 * i + 2])
    if codes[i] == 0 then put(plan.lease, ids[i], deadline) end
  end
end
call('ZCARD', key.lease)
call('HDEL', key.meta, '')
write_overlay('lease')
return {codes}
