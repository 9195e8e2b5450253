
-- settle: ends deliveries, single ones or all that an owner holds.
-- ARGV: owner or '', number of settlements; per settlement: id, token, outcome, delay (ms), text;
--       for an owner: outcome, delay (ms), text.
-- Returns: {codes}: 0 done, 1 gone, 2 lost.
local codes = {}
if ARGV[1] == '' then
  codes = settle(3, tonumber(ARGV[2]))
else
  local ids, given_back = held_by(holding_of(ARGV[1])), {}
  fetch_all(held, ids, parse_held)
  for i = 1, #ids do
    local h = held_of(ids[i])
    if h then settle_one(ids[i], h, ARGV[3], tonumber(ARGV[4]), ARGV[5], given_back) end
    codes[i] = 0
  end
  place_all(given_back)
end
commit(false)
return {codes}
