package events

import "encoding/json"

// Subjects of the request/reply API, served by the submitter through the NATS services API. A request that fails is
// answered with the headers Nats-Service-Error-Code (an HTTP status) and Nats-Service-Error, and an [Error] as body.
const (
	APISubmit         = "ax.api.submit"
	APISubmitMany     = "ax.api.submitMany"
	APIGet            = "ax.api.get"
	APIList           = "ax.api.list"
	APICancel         = "ax.api.cancel"
	APIHistory        = "ax.api.history"
	APIStats          = "ax.api.stats"
	APIRerun          = "ax.api.rerun"
	APISchedulePut    = "ax.api.schedule.put"
	APIScheduleGet    = "ax.api.schedule.get"
	APIScheduleList   = "ax.api.schedule.list"
	APIScheduleDelete = "ax.api.schedule.delete"
)

// SubmitRequest is the body of ax.api.submit: a submission and its type.
type SubmitRequest struct {
	Type string `json:"type"`
	Submit
}

// SubmitManyRequest is the body of ax.api.submitMany: up to 1,000 submissions, each accepted or refused by itself.
type SubmitManyRequest struct {
	Tasks []SubmitRequest `json:"tasks"`
}

// SubmitManyReply answers each submission of the request, in its order.
type SubmitManyReply struct {
	Answers []Answer `json:"answers"`
}

// IDRequest is the body of get, history, cancel and rerun.
type IDRequest struct {
	ID string `json:"id"`
	By string `json:"by,omitempty"` // who asks, kept in the history
}

// CancelReply answers a cancel: cancelled, cancelling or finished.
type CancelReply struct {
	ID     string `json:"id"`
	Status string `json:"status"`
}

// ListRequest asks for tasks by id from the greatest down. After is the id of the last task of the page before.
type ListRequest struct {
	Type  string `json:"type,omitempty"`
	State string `json:"state,omitempty"`
	Limit int    `json:"limit,omitempty"` // 1 to 1,000, default 50
	After string `json:"after,omitempty"`
}

// ListReply is one page of tasks, without payloads, results and history.
type ListReply struct {
	Tasks []Task `json:"tasks"`
	Next  string `json:"next,omitempty"` // pass as After for the next page; empty on the last
}

// HistoryReply is the kept history of a task, oldest first.
type HistoryReply struct {
	ID      string         `json:"id"`
	Entries []HistoryEntry `json:"entries"`
}

// HistoryEntry is one recorded change.
type HistoryEntry struct {
	Seq     int64       `json:"seq"`
	At      string      `json:"at"`
	From    string      `json:"from,omitempty"`
	To      string      `json:"to"`
	Reason  string      `json:"reason"`
	By      string      `json:"by"`
	Attempt int         `json:"attempt"`
	Claim   string      `json:"claim,omitempty"`
	Error   *EventError `json:"error,omitempty"`
}

// Task is a task as the API shows it.
type Task struct {
	ID                string            `json:"id"`
	Type              string            `json:"type"`
	State             string            `json:"state"`
	Reason            string            `json:"reason"` // of the newest change
	Priority          int               `json:"priority"`
	Channel           string            `json:"channel"`
	CreatedAt         string            `json:"createdAt"`
	ScheduledAt       string            `json:"scheduledAt"`
	StartedAt         string            `json:"startedAt,omitempty"`
	FinishedAt        string            `json:"finishedAt,omitempty"`
	ExpiresAt         string            `json:"expiresAt,omitempty"`
	CancelRequestedAt string            `json:"cancelRequestedAt,omitempty"`
	Attempts          int               `json:"attempts"`
	Failures          int               `json:"failures"`
	Losses            int               `json:"losses"`
	MaxAttempts       int               `json:"maxAttempts"`
	MaxLosses         int               `json:"maxLosses"`
	Timeout           string            `json:"timeout"`
	WorkerID          string            `json:"workerId,omitempty"`
	LeaseUntil        string            `json:"leaseUntil,omitempty"`
	ExecutionID       string            `json:"executionId,omitempty"`
	Payload           json.RawMessage   `json:"payload,omitempty"`
	PayloadSize       int               `json:"payloadSize,omitempty"` // set when the payload had to be left out for a reply to fit
	Result            json.RawMessage   `json:"result,omitempty"`
	ResultSize        int               `json:"resultSize,omitempty"` // likewise
	LastError         *EventError       `json:"lastError,omitempty"`
	Progress          json.RawMessage   `json:"progress,omitempty"`
	BizKey            string            `json:"bizKey,omitempty"`
	Labels            map[string]string `json:"labels,omitempty"`
	RerunOf           string            `json:"rerunOf,omitempty"`
	Source            string            `json:"source,omitempty"`
	Seq               int64             `json:"seq"`
}

// StatsReply tells how the system fares, as far as that can be told cheaply.
type StatsReply struct {
	// Now is the database's time, which the other times are to be compared with.
	Now     string   `json:"now"`
	Workers []Worker `json:"workers"`
	// Backlog is the age in seconds of the oldest due task that nobody took; 0 when there is none.
	BacklogSeconds float64 `json:"backlogSeconds"`
	DeadLetters    int64   `json:"deadLetters"`
	// Services are the processes of ax's own services, those too that were not seen for up to an hour.
	Services []Service `json:"services"`
	// Attention says what is not as it should be, a sentence each; empty when all is well.
	Attention []string `json:"attention"`
}

// Service is a process of one of ax's services as it announced itself.
type Service struct {
	ID         string   `json:"id"`
	Service    string   `json:"service"`
	Host       string   `json:"host"`
	PID        int      `json:"pid"`
	Version    string   `json:"version,omitempty"`
	Leads      bool     `json:"leads"`                // it does the work that one process does at a time
	Conditions []string `json:"conditions,omitempty"` // what is not as it should be with it
	SeenAt     string   `json:"seenAt"`
}

// Worker is a worker process as it announced itself.
type Worker struct {
	ID      string   `json:"id"`
	Host    string   `json:"host"`
	PID     int      `json:"pid"`
	Types   []string `json:"types"`
	Slots   int      `json:"slots"`
	Channel string   `json:"channel"`
	Version string   `json:"version,omitempty"`
	SeenAt  string   `json:"seenAt"`
}

// Schedule is a stored cron entry: when it fires, and the task that each fire time makes.
type Schedule struct {
	Name    string `json:"name"`              // 1 to 64 characters of a-z 0-9 _ -
	Cron    string `json:"cron"`              // 5 or 6 fields, @hourly..., or "@every 90s"
	Zone    string `json:"zone,omitempty"`    // IANA, default UTC
	Misfire string `json:"misfire,omitempty"` // of slots missed while nothing could fire them: skip, once (the newest; default) or all
	// CatchUp is how far back all goes, 1s to 744h, default 24h; with misfire all only.
	CatchUp string `json:"catchUp,omitempty"`
	// CatchUpMax is how many missed slots all fires, the newest ones: 1 to 1,000, default 100; with misfire all only.
	CatchUpMax int           `json:"catchUpMax,omitempty"`
	Overlap    string        `json:"overlap,omitempty"` // allow (the only policy so far)
	Task       SubmitRequest `json:"task"`              // template: type and submission, without id and times
	NextAt     string        `json:"nextAt,omitempty"`
	LastAt     string        `json:"lastAt,omitempty"`
	Broken     string        `json:"broken,omitempty"` // why it cannot fire
}

// ScheduleRequest is the body of ax.api.schedule.get and ax.api.schedule.delete. A delete is answered with the same body.
type ScheduleRequest struct {
	Name string `json:"name"`
}

// ScheduleListRequest asks for schedules in the order of their names. After is the name of the last one of the page before.
type ScheduleListRequest struct {
	After string `json:"after,omitempty"`
}

// ScheduleList is one page of schedules: as many as fit into a message.
type ScheduleList struct {
	Schedules []Schedule `json:"schedules"`
	Next      string     `json:"next,omitempty"` // pass as After for the next page; empty on the last
}
