
-- claim: takes a delivery back that was released with a delay and is not due yet.
-- ARGV: id, token, lease (ms), owner.
-- Returns: {} or {id, token, count, blames, losses, payload}.
local id, name = ARGV[1], ARGV[4]
local h = held_of(id)
if h and h.place == 'l' and h.owner == name then return {id, h.token, h.deliveries, h.blames, h.losses, h.payload} end -- repeated
if not h or h.place ~= 'p' or h.token ~= ARGV[2] then return {} end

tokens = tokens + 1
h.place, h.token, h.owner = 'l', time[1] .. format('%06d', time[2]) .. '-' .. whole(tokens), name
put(plan.held, id, h)
put(plan.delayed, id, nil)
put(plan.lease, id, now + tonumber(ARGV[3]))
local partition = partition_of(h.payload)
if partition then put(plan.running, partition, (tonumber(get(plan.running, partition)) or 0) + 1) end
local holding = holding_of(name) or {request = '', ids = {}, last = {}}
holding.ids[#holding.ids + 1] = id
holding.last[id] = false
put(plan.owner, name, holding)
commit(false)
return {id, h.token, h.deliveries, h.blames, h.losses, h.payload}
