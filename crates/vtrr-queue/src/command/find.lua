
-- find: where a task is.
-- ARGV: id.
-- Returns: {"gone"} or {kind, deliveries, payload, detail…}: tagged: start tag; leased: ms left, owner; delayed: ms left;
--          dead: cause and error.
local id = ARGV[1]
local h = held_of(id)
local n, at = h and h.deliveries or 0, h and h.place or 'q'
local function left(set) return math.max((score(set, id) or 0) - now, 0) end
if at == 'l' then return {'leased', n, h.payload, left(plan.lease), h.owner} end
if SET_OF[at] == 'delayed' then return {'delayed', n, h.payload, left(plan.delayed)} end
if at == 'd' then return {'dead', n, h.payload, get(plan.error, id) or ''} end
local waiting = get(plan.waiting, id)
if waiting then return {'waiting', n, (unpack_waiting(waiting))} end
if not score(plan.queue, id) then return {'gone'} end
return {'tagged', n, get(plan.task, id) or '', format('%.17g', score(plan.queue, id))}
