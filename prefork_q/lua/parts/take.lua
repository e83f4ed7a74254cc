-- take: move tasks from the pending lists to a worker. Peek, check, lease, then pop: an id leaves its list
-- only once its task was found readable, is on the worker's record and has a lease.
--
-- Arguments of the call, from ARGV[at]: worker, seq, lease_ms, room, limit, budget_us, max_bytes,
-- how many queues, the queues in order, then pairs of type and its pace in µs. At most `limit` tasks are
-- taken: `room` of any type, the others while they are of a paced type and fit the budget.
--
-- returns  {word, token, lots, dropped, left}: word is ok, again (the same seq: the same answer), late
--          (a later call has been answered) or gone; a lot holds neighbours that are alike:
--          {type, queue, attempt, max_attempts, crashes, timeout_ms, {id, body, wait_ms, ...}};
--          dropped holds {id or queue, reason} for what was found unreadable;
--          left is 1 if the queues have more that could be claimed, else 0.

-- As in counters.
redis.call("ZCARD", CLAIMS)

local SCAN_LIMIT = 1000

-- Redis keeps a sorted set of up to 128 short members as a list and walks it for each one that it adds: for
-- 64 leases at once that was a fifth of the whole call. A member of over 64 bytes makes it an index, and the
-- set stays one when that member goes again.
local TOO_LONG_FOR_A_LIST = string.rep("-", 65)
local MANY = 8

local function put_in_lot(lots, type_, queue, attempt, max_attempts, crashes, timeout_ms, id, body, since)
  local lot = lots[#lots]
  if not lot or lot[1] ~= type_ or lot[2] ~= queue or lot[3] ~= attempt or lot[4] ~= max_attempts
    or lot[5] ~= crashes or lot[6] ~= timeout_ms then
    lot = { type_, queue, attempt, max_attempts, crashes, timeout_ms, {} }
    lots[#lots + 1] = lot
  end
  local tasks = lot[7]
  local n = #tasks
  tasks[n + 1], tasks[n + 2], tasks[n + 3] = id, body, math.max(0, now_ms - since)
end

local function answer_again(record, left)
  local words, lots = {}, {}
  for word in string.gmatch(record, "%S+") do words[#words + 1] = word end
  local token = words[2]
  for i = 3, #words do
    local id = words[i]
    local fields = redis.pcall("HMGET", TASK .. id, "status", "token", "type", "queue", "attempts",
      "max_attempts", "crashes", "timeout_ms", "ready_at", "created_at", "body", "body2")
    if fields[1] == "processing" and fields[2] == token then
      put_in_lot(lots, fields[3], fields[4], tonumber(fields[5]) or 1, tonumber(fields[6]) or 1,
        tonumber(fields[7]) or 0, tonumber(fields[8]) or 0,
        id, body_of(id, TASK .. id, fields[11], fields[12]) or "",
        tonumber(fields[9] or fields[10]) or now_ms)
    end
  end
  return { "again", token, lots, {}, left }
end

-- Leaves wake-up tokens for the queues that have tasks; returns whether there are such.
local function wake_for(first_queue, last_queue, closed)
  local left = 0
  for q = first_queue, last_queue do
    if not closed[ARGV[q]] and has_tasks(ARGV[q]) then
      wake(ARGV[q])
      left = 1
    end
  end
  return left
end

local function take(at, forget_at)
  local worker, seq, lease_ms = ARGV[at], ARGV[at + 1], tonumber(ARGV[at + 2])
  local room, limit = tonumber(ARGV[at + 3]), tonumber(ARGV[at + 4])
  local budget_us, max_bytes = tonumber(ARGV[at + 5]), tonumber(ARGV[at + 6])
  local first_queue = at + 8
  local last_queue = first_queue + tonumber(ARGV[at + 7]) - 1
  local closed = {}
  for q = first_queue, last_queue do closed[ARGV[q]] = is_paused(ARGV[q]) end

  local record = redis.pcall("GET", CLAIM .. worker)
  if record == "gone" then return { "gone", "0", {}, {}, 0 } end
  if type(record) == "string" then
    local last = string.match(record, "^%S+")
    if last == seq then return answer_again(record, wake_for(first_queue, last_queue, closed)) end
    -- Sent over a connection that was given up since: nobody would know what it took.
    if tonumber(last) > tonumber(seq) then return { "late", "0", {}, {}, 0 } end
  end

  local paces = {}
  for i = last_queue + 1, #ARGV, 2 do paces[ARGV[i]] = tonumber(ARGV[i + 1]) end
  local token = redis.pcall("GET", TOKEN)
  token = text(math.max((type(token) == "string" and tonumber(token) or 0) + 1, now_us))

  local lots, ids, hashes, counted, taken = {}, {}, {}, {}, {}
  local ghosts, strays, bad, bodiless, dropped, popped = {}, 0, {}, {}, {}, {}
  local bytes, scanned, is_full = 0, 0, limit <= 0

  for q = first_queue, last_queue do
    local queue = ARGV[q]
    local pending, seen = PENDING .. queue, 0
    while not is_full and not closed[queue] and scanned < SCAN_LIMIT do
      local want = math.min(limit - #ids, SCAN_LIMIT - scanned)
      local peeked = redis.pcall("LRANGE", pending, -seen - want, -seen - 1)
      if peeked.err then
        require_wrong_type(peeked)
        set_aside(queue)
        dropped[#dropped + 1] = { queue, "its pending list was not a list; it was set aside" }
        break
      end
      local before = seen
      for i = #peeked, 1, -1 do
        local id = peeked[i]
        local task = TASK .. id
        -- Without attempts it was never claimed, and is pending since it was submitted.
        local fields = redis.pcall("HMGET", task, "status", "type", "max_attempts", "created_at",
          "attempts", "timeout_ms", "body", "body2")
        local status = fields[1]
        if not status or not fields[2] then
          bad[#bad + 1] = id
        elseif status == "cancelled" then
          ghosts[#ghosts + 1] = { id, queue }
        elseif status ~= "pending" or taken[id] then
          strays = strays + 1
        else
          local attempts, crashes, ready_at = 0, 0, tonumber(fields[4]) or now_ms
          if fields[5] then
            local more = redis.call("HMGET", task, "crashes", "ready_at")
            attempts, crashes = tonumber(fields[5]) or 0, tonumber(more[1]) or 0
            ready_at = tonumber(more[2]) or ready_at
          end
          local type_ = fields[2]
          local pace = paces[type_]
          -- What took a worker down runs alone, so that it takes no other task with it.
          is_full = crashes > 0 and #ids > 0
            or #ids >= room and (crashes > 0 or not pace or pace > budget_us)
          if is_full then break end
          local body = body_of(id, task, fields[7], fields[8])
          if not body then
            bodiless[#bodiless + 1] = id
          else
            bytes = bytes + #body
            is_full = #ids > 0 and bytes > max_bytes
            if is_full then break end
            local n = #ids + 1
            ids[n], hashes[n], taken[id] = id, task, true
            counted[n] = attempts == 0 and "1" or text(attempts + 1)
            put_in_lot(lots, type_, queue, attempts + 1, tonumber(fields[3]) or 1, crashes,
              fields[6] and tonumber(fields[6]) or 0, id, body, ready_at)
            if pace then budget_us = budget_us - pace end
            is_full = crashes > 0 or n >= limit
          end
        end
        seen = seen + 1
        if is_full then break end
      end
      scanned = scanned + seen - before
      if #peeked < want then break end
    end
    if seen > 0 then popped[#popped + 1], popped[#popped + 2] = pending, seen end
  end

  redis.call("SET", CLAIM .. worker, seq .. " " .. token .. " " .. table.concat(ids, " "),
    "PX", text(4 * lease_ms))
  if #ids > 0 then
    local expiry, leases = text(now_ms + lease_ms), {}
    for n = 1, #ids do leases[2 * n - 1], leases[2 * n] = expiry, ids[n] end
    redis.call("SET", TOKEN, token)
    if #ids > MANY then redis.call("ZADD", PROCESSING, expiry, TOO_LONG_FOR_A_LIST) end
    redis.call("ZADD", PROCESSING, unpack(leases))
    if #ids > MANY then redis.call("ZREM", PROCESSING, TOO_LONG_FOR_A_LIST) end
    redis.call("ZADD", CLAIMS, now, worker)
    for n = 1, #ids do
      redis.call("HSET", hashes[n], "status", "processing", "token", token,
        "attempts", counted[n], "started_at", now)
    end
  end
  for n = 1, #popped, 2 do redis.call("LTRIM", popped[n], "0", -popped[n + 1] - 1) end

  for _, ghost in ipairs(ghosts) do drop_ghost(ghost[1], ghost[2], forget_at) end
  for _, id in ipairs(bad) do
    to_corrupt(id)
    dropped[#dropped + 1] = { id, "its task is missing or unreadable" }
  end
  for _, id in ipairs(bodiless) do
    to_dead(id, TASK .. id, '{"type":"PayloadMissing","message":"the payload is no longer stored","traceback":""}',
      redis.call("HGET", TASK .. id, "waited"))
    dropped[#dropped + 1] = { id, "its payload is missing; it is dead now" }
  end
  if strays > 0 then count("strays", strays) end
  write_sets()
  return { "ok", token, lots, dropped, wake_for(first_queue, last_queue, closed) }
end
