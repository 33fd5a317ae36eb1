-- The body of every request, and the figures as one line of JSON. Usage: wrk … -s wrk.lua URL -- BODY
local body

function init(arguments)
  body = arguments[1]
  wrk.method = "POST"
  wrk.body = body
  wrk.headers["content-type"] = "application/json"
end

function done(summary, latency, requests)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.status + errors.timeout
  io.write(string.format('{"p50_us": %.1f, "p99_us": %.1f, "requests_s": %.1f, "failed": %d}\n',
    latency:percentile(50), latency:percentile(99), summary.requests / summary.duration * 1e6, failed))
end
