
-- settle: ends deliveries, single ones or all that an owner holds. Outcomes: ack, release (it did not run), stopped, ran, lost, unknown,
-- retry, fail; the text is the reason, the body of a retry, or cause and error.
-- ARGV: owner or '', number of settlements; per settlement: id, token, outcome, delay (ms), text;
--       for an owner: outcome, delay (ms), text.
-- Returns: {codes}: 0 done, 1 gone, 2 lost; for an owner {ids}, of what it held.
local answer
if ARGV[1] == '' then
  answer = lease.settle(3, tonumber(ARGV[2]))
else
  answer = lease.settle_owner(ARGV[1], ARGV[3], tonumber(ARGV[4]), ARGV[5])
end
commit(false)
return {answer}
