-- counters: what this call counts, written together at its end by the script that made the outcome.

local counts = {}

local function count(name, n)
  counts[name] = (counts[name] or 0) + (n or 1)
end

local function write_counts()
  for name, n in pairs(counts) do
    redis.call("HINCRBY", TOTALS, name, n)
  end
  if counts.completed or counts.failed then
    local rate = root .. "rate:" .. clock[1]
    if counts.completed then redis.call("HINCRBY", rate, "completed", counts.completed) end
    if counts.failed then redis.call("HINCRBY", rate, "failed", counts.failed) end
    redis.call("EXPIRE", rate, 90)
  end
end
