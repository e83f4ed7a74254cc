-- take: move tasks from the pending lists to a worker. Peek, check, then pop: an id leaves its list
-- only once its task was found readable, so an error on the way loses nothing.
--
-- Arguments of the call, from ARGV[at]: worker, seq, lease_ms, room, limit, budget_us, max_bytes,
-- how many queues, the queues in order, then pairs of type and its pace in µs. The first `room` tasks
-- may be of any type; up to `limit` more follow while they are of a paced type and fit the budget.
--
-- returns  {word, token, tasks, dropped}: word is ok, again (the same seq: the same answer) or gone;
--          a task is {id, type, queue, body, attempt, max_attempts, crashes, timeout_ms, wait_ms};
--          dropped holds {id or queue, reason} for what was found unreadable.

local SCAN_LIMIT = 1000

local function lease_fields(id)
  return redis.pcall("HMGET", TASK .. id, "status", "type", "attempts", "max_attempts", "crashes",
    "timeout_ms", "ready_at", "created_at", "token")
end

local function described(id, fields, queue, body, attempt)
  return { id, fields[2], queue, body, attempt, tonumber(fields[4]) or 1, tonumber(fields[5]) or 0,
    tonumber(fields[6]) or 0, math.max(0, now_ms - (tonumber(fields[7] or fields[8]) or now_ms)) }
end

local function answer_again(record)
  local words = {}
  for word in string.gmatch(record, "%S+") do words[#words + 1] = word end
  local token, tasks = words[2], {}
  for i = 3, #words do
    local id = words[i]
    local fields = lease_fields(id)
    if not fields.err and fields[1] == "processing" and fields[9] == token then
      local queue = redis.call("HGET", TASK .. id, "queue")
      tasks[#tasks + 1] = described(id, fields, queue, redis.call("GET", BODY .. id) or "",
        tonumber(fields[3]) or 1)
    end
  end
  return { "again", token, tasks, {} }
end

local function take(at, retention_ms)
  local worker, seq, lease_ms = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local room, limit = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local budget_us, max_bytes = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  local n_queues = tonumber(ARGV[at + 7])
  local first_queue = at + 8
  local record_key = root .. "claim:" .. worker

  local record = redis.call("GET", record_key)
  if record == "gone" then return { "gone", "0", {}, {} } end
  if record and string.match(record, "^%S+") == seq then return answer_again(record) end

  local paces = {}
  for i = first_queue + n_queues, #ARGV, 2 do paces[ARGV[i]] = tonumber(ARGV[i + 1]) end

  local tasks, dropped, bytes, scanned = {}, {}, 0, 0
  local token, is_full, expiry = nil, limit <= 0, now_ms + lease_ms
  local leases, ids, taken = {}, {}, {}

  for q = first_queue, first_queue + n_queues - 1 do
    local queue = ARGV[q]
    local pending = PENDING .. queue
    local is_paused = redis.call("SISMEMBER", PAUSED, queue) == 1
    while not is_full and not is_paused and scanned < SCAN_LIMIT do
      local want = math.min(limit - #tasks, SCAN_LIMIT - scanned)
      local peeked = redis.pcall("LRANGE", pending, -want, -1)
      if peeked.err then
        dropped[#dropped + 1] = { queue, "the pending list is not a list" }
        break
      end
      local popped, ghosts, strays, bad, bodiless = 0, {}, 0, {}, {}
      for i = #peeked, 1, -1 do
        local id = peeked[i]
        local fields = lease_fields(id)
        if fields.err or not fields[1] then
          bad[#bad + 1] = id
        elseif fields[1] == "cancelled" then
          ghosts[#ghosts + 1] = id
        elseif fields[1] ~= "pending" or taken[id] then
          strays = strays + 1
        else
          local suspect = fields[5] and tonumber(fields[5]) > 0
          local pace = paces[fields[2]]
          if suspect and #tasks > 0
            or #tasks >= room and (suspect or not pace or pace > budget_us) then
            is_full = true
            break
          end
          local body = redis.pcall("GET", BODY .. id)
          if not body or type(body) == "table" then
            bodiless[#bodiless + 1] = id
          else
            if #tasks > 0 and bytes + #body > max_bytes then
              is_full = true
              break
            end
            bytes = bytes + #body
            if pace then budget_us = budget_us - pace end
            taken[id] = true
            ids[#ids + 1] = id
            tasks[#tasks + 1] = described(id, fields, queue, body, (tonumber(fields[3]) or 0) + 1)
            if suspect then is_full = true end
          end
        end
        popped = popped + 1
        if is_full or #tasks >= limit then
          is_full = true
          break
        end
      end

      -- The first write: a full server lets it pass, and with it the rest.
      if popped > 0 then redis.call("LTRIM", pending, 0, -popped - 1) end
      scanned = scanned + popped
      for _, id in ipairs(ghosts) do
        expire(id, TASK .. id, redis.call("HGET", TASK .. id, "idem"), retention_ms)
        redis.call("HINCRBY", GHOSTS, queue, -1)
      end
      if strays > 0 then count("strays", strays) end
      for _, id in ipairs(bad) do
        to_corrupt(id)
        dropped[#dropped + 1] = { id, "its task is missing or unreadable" }
      end
      for _, id in ipairs(bodiless) do
        to_dead(id, '{"type":"PayloadMissing","message":"the payload is no longer stored"}',
          redis.call("HGET", TASK .. id, "waited"))
        dropped[#dropped + 1] = { id, "its payload is missing; it is dead now" }
      end
      if #peeked < want then break end
    end
    if not is_paused then
      local left = redis.pcall("LLEN", pending)
      if type(left) == "number" and left > 0 then wake(queue) end
    end
  end

  if #tasks > 0 then
    local last = tonumber(redis.call("GET", root .. "token") or 0)
    token = string.format("%.0f", math.max(last + 1, now_us))
    redis.call("SET", root .. "token", token)
    for i, task in ipairs(tasks) do
      redis.call("HSET", TASK .. task[1], "status", "processing", "token", token,
        "attempts", task[5], "started_at", now_ms)
      leases[2 * i - 1], leases[2 * i] = expiry, task[1]
    end
    redis.call("ZADD", PROCESSING, unpack(leases))
    redis.call("SET", record_key, seq .. " " .. token .. " " .. table.concat(ids, " "), "PX", 4 * lease_ms)
  end
  return { "ok", token or "0", tasks, dropped }
end
