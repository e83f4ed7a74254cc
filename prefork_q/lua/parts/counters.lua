-- counters: what this call counts, written together at its end by the script that made the outcome.

-- If something else stands where it will be written, this raises before anything is changed. The parts that
-- write to other keys begin so too.
redis.call("HEXISTS", TOTALS, "")

local counts = {}

local function count(name, n)
  counts[name] = (counts[name] or 0) + (n or 1)
end

local function write_counts()
  for name, n in pairs(counts) do
    redis.call("HINCRBY", TOTALS, name, n)
  end
  if counts.completed or counts.failed then
    local rate, is_new = root .. "rate:" .. clock[1], false
    for _, name in ipairs({ "completed", "failed" }) do
      local n = counts[name]
      if n then is_new = redis.call("HINCRBY", rate, name, n) == n or is_new end
    end
    if is_new then redis.call("EXPIRE", rate, "90") end
  end
end
