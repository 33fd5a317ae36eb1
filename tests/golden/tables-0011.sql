CREATE TABLE agents (
  app VARCHAR(128) NOT NULL,
  name VARCHAR(128) NOT NULL,
  team VARCHAR(128) NOT NULL,
  document JSON,
  source TEXT,
  wanted BOOLEAN NOT NULL,
  generation INTEGER NOT NULL,
  url TEXT,
  pid BIGINT,
  started FLOAT,
  seen FLOAT,
  restarts INTEGER NOT NULL,
  sensors JSON,
  CONSTRAINT pk_agents PRIMARY KEY (app, name)
);

CREATE TABLE applications (
  name VARCHAR(128) NOT NULL,
  team VARCHAR(128) NOT NULL,
  document JSON NOT NULL,
  source TEXT,
  revision INTEGER NOT NULL,
  updated FLOAT NOT NULL,
  CONSTRAINT pk_applications PRIMARY KEY (name, team)
);

CREATE TABLE event_marks (
  number BIGINT NOT NULL,
  at FLOAT NOT NULL,
  gone BOOLEAN NOT NULL,
  CONSTRAINT pk_event_marks PRIMARY KEY (number)
);

CREATE TABLE events (
  id INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  at FLOAT NOT NULL,
  type VARCHAR(128) NOT NULL,
  app VARCHAR(128) NOT NULL,
  team VARCHAR(128) DEFAULT '' NOT NULL,
  subject TEXT NOT NULL,
  data JSON NOT NULL
);

CREATE INDEX ix_events_team ON events (team);

CREATE INDEX ix_events_type ON events (type);

CREATE TABLE fields (
  place VARCHAR(512) NOT NULL,
  field VARCHAR(256) NOT NULL,
  strategy TEXT,
  app VARCHAR(128),
  agent VARCHAR(128),
  intent VARCHAR(128),
  priority INTEGER NOT NULL,
  until FLOAT NOT NULL,
  written JSON,
  foreign_value JSON,
  foreign_since FLOAT,
  CONSTRAINT pk_fields PRIMARY KEY (place, field)
);

CREATE TABLE idempotency_keys (
  "key" VARCHAR(256) NOT NULL,
  kind VARCHAR(32) NOT NULL,
  target VARCHAR(128) NOT NULL,
  fingerprint VARCHAR(64) NOT NULL,
  at FLOAT NOT NULL,
  CONSTRAINT pk_idempotency_keys PRIMARY KEY ("key")
);

CREATE TABLE intents (
  number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  id VARCHAR(128) NOT NULL,
  app VARCHAR(128) NOT NULL,
  team VARCHAR(128) NOT NULL,
  "key" TEXT NOT NULL,
  place TEXT NOT NULL,
  strategy TEXT NOT NULL,
  state VARCHAR(16) NOT NULL,
  verdict VARCHAR(16) NOT NULL,
  decided FLOAT NOT NULL,
  document JSON NOT NULL,
  approved_by TEXT,
  due FLOAT,
  tries INTEGER NOT NULL,
  guard_before FLOAT,
  guard_until FLOAT,
  reverting TEXT,
  CONSTRAINT uq_intents_app_team_key UNIQUE (app, team, "key"),
  CONSTRAINT uq_intents_id UNIQUE (id)
);

CREATE INDEX ix_intents_open ON intents (place) WHERE (state IN ('pending', 'running') OR guard_until IS NOT NULL OR reverting IS NOT NULL);

CREATE INDEX ix_intents_place_decided ON intents (place, decided);

CREATE INDEX ix_intents_state ON intents (state);

CREATE INDEX ix_intents_strategy_decided ON intents (strategy, decided);

CREATE TABLE label_votes (
  number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  app VARCHAR(128) NOT NULL,
  team VARCHAR(128) NOT NULL,
  id VARCHAR(256) NOT NULL,
  label JSON NOT NULL,
  "by" TEXT NOT NULL,
  at FLOAT NOT NULL
);

CREATE INDEX ix_label_votes_id_app_team ON label_votes (id, app, team);

CREATE TABLE labels (
  number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  app VARCHAR(128) NOT NULL,
  id VARCHAR(256) NOT NULL,
  run TEXT NOT NULL,
  data JSON NOT NULL,
  guess JSON,
  score FLOAT,
  state VARCHAR(16) NOT NULL,
  label JSON,
  "by" TEXT,
  asked FLOAT NOT NULL,
  given FLOAT,
  team VARCHAR(128) NOT NULL,
  purpose VARCHAR(16) DEFAULT 'train' NOT NULL,
  disputed BOOLEAN DEFAULT 0 NOT NULL,
  "row" JSON,
  picture TEXT,
  CONSTRAINT uq_labels_app_team_id UNIQUE (app, team, id)
);

CREATE INDEX ix_labels_app_state ON labels (app, state);

CREATE TABLE notified (
  webhook VARCHAR(512) NOT NULL,
  event BIGINT NOT NULL,
  CONSTRAINT pk_notified PRIMARY KEY (webhook)
);

CREATE TABLE operations (
  number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  id VARCHAR(128) NOT NULL,
  kind VARCHAR(32) NOT NULL,
  service VARCHAR(128) NOT NULL,
  app VARCHAR(128) NOT NULL,
  team VARCHAR(128) DEFAULT '' NOT NULL,
  request JSON NOT NULL,
  created FLOAT NOT NULL,
  state VARCHAR(32) NOT NULL,
  ended FLOAT,
  progress JSON,
  result JSON,
  problem JSON,
  CONSTRAINT uq_operations_id UNIQUE (id)
);

CREATE INDEX ix_operations_state ON operations (state);

CREATE TABLE runs (
  name VARCHAR(128) NOT NULL,
  app VARCHAR(128) NOT NULL,
  team VARCHAR(128) NOT NULL,
  workflow VARCHAR(128) NOT NULL,
  created FLOAT NOT NULL,
  definition JSON,
  source TEXT,
  drive INTEGER NOT NULL,
  asked JSON NOT NULL,
  stop BOOLEAN NOT NULL,
  active BOOLEAN NOT NULL,
  outcome VARCHAR(32),
  problem JSON,
  CONSTRAINT pk_runs PRIMARY KEY (name)
);

CREATE INDEX ix_runs_active ON runs (active);

CREATE TABLE tokens (
  name VARCHAR(128) NOT NULL,
  hash VARCHAR(64) NOT NULL,
  created FLOAT NOT NULL,
  revoked FLOAT,
  role VARCHAR(16) DEFAULT 'viewer' NOT NULL,
  team VARCHAR(128),
  expires FLOAT,
  CONSTRAINT pk_tokens PRIMARY KEY (name),
  CONSTRAINT uq_tokens_hash UNIQUE (hash)
);

CREATE TABLE trail (
  number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  intent VARCHAR(128) NOT NULL,
  at FLOAT NOT NULL,
  text TEXT NOT NULL
);

CREATE INDEX ix_trail_intent ON trail (intent);
