
-- settle: ends deliveries, single ones or all that an owner holds.
-- ARGV: owner or '', number of settlements; per settlement: id, token, outcome, delay (ms), text;
--       for an owner: outcome, delay (ms), text.
-- Returns: {codes}: 0 done, 1 gone, 2 lost.
local codes = {}
if ARGV[1] == '' then
  codes = settle(3, tonumber(ARGV[2]))
else
  local holding = holding_of(ARGV[1])
  local ids, given_back = {}, {}
  for i, kept in ipairs(holding and holding.ids or {}) do ids[i] = kept.id end
  for from = 1, #ids, 1000 do fetch(held, {unpack(ids, from, math.min(from + 999, #ids))}, parse_held) end
  for i = 1, #ids do
    if held.value[ids[i]] then settle_one(ids[i], held.value[ids[i]], ARGV[3], tonumber(ARGV[4]), ARGV[5], given_back) end
    codes[i] = 0
  end
  place_all(given_back)
end
commit(false)
return {codes}
