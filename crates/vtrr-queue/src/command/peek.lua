
-- peek: who would be served next. Serves in the script's own memory and writes nothing.
-- ARGV: n.
-- Returns: {{id, start tag, payload}}.
local n, tasks, bytes, seen, partitions = tonumber(ARGV[1]), {}, 0, {}, 0
serve.begin(n)
while #tasks < n and partitions < 250 and bytes < 4194304 do
  local id, start, payload, partition = serve.take()
  if not id then break end
  if partition and not seen[partition] then seen[partition], partitions = true, partitions + 1 end
  if payload then
    tasks[#tasks + 1] = {id, format('%.17g', start), payload}
    bytes = bytes + #payload
  end
end
return tasks
