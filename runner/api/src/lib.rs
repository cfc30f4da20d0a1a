//! The wire: what goes in and what comes out over HTTP. Each thing is declared once, for the server that answers it, the
//! client, the command line and the pages that read it, and the OpenAPI description that tells of it.
//!
//! A field's doc comment is what the description says of it, so it tells meaning, unit and bounds. Names are for good:
//! fields may be added, never renamed. What was added later is read with a default, for the sake of older servers.
//!
//! What people write (specs, submissions, backfills) is judged by the domain and therefore declared there, and so is what
//! the engine counts (`Pruned`); here it has its name on the wire.

mod accept;
mod admin;
mod backfill;
mod claim;
mod control;
mod dispatch;
mod group;
mod json;
mod list;
mod log;
mod message;
pub mod moment;
mod named;
mod node;
mod notify;
mod problem;
mod queue;
mod run;
mod runtime;
mod script;
mod session;
mod submission;
mod timer_task;
mod token;

pub use accept::accepts;
pub use admin::{AuditEntry, Prune, RetentionOrPruned};
pub use backfill::{Backfill, BackfillPlan, BackfillStarted};
pub use claim::{
    Claim, ClaimAnswer, ClaimAnswers, ClaimFailure, ClaimOutput, ClaimRequest, ClaimToken, Claims, Heartbeat, Items,
    OfClaim, ReportLine,
};
pub use control::{
    Bulk, BulkAction, BulkRefusal, BulkReport, ClearTask, ID_CHARS_MIN, REASON_CHARS_MAX, RerunOptions, RunFilter,
    Scripts, ScriptsChoice, StateOverride, TaskOverride, Words,
};
pub use dispatch::{
    Assignment, Audience, Completion, CompletionStatus, Event, Given, MEMBERS_KNOWN_MAX, Members, MembersPatch,
    MembersSpec, Occurrence, Offer, OfferTerms, OfferToUser, Peek, Poll, PollWindow,
};
pub use group::{
    Detached, DisableMode, DisableRequest, Graph, GraphEdge, GraphLink, GraphNode, Group, GroupPatch, GroupPut,
    NextInstant, NextInstants, Revision, Validation,
};
pub use json::Json;
pub use list::List;
pub use log::{LogLine, RunEvent};
pub use message::{
    Bucket, Cancelled, Day, Message, MessageFilter, MessageView, Messages, MessagesAccepted, Rejected, Topic,
};
pub use moment::Moment;
pub use named::{
    Category, CategorySpec, Connection, ConnectionSpec, Pool, PoolSpec, RotatedKeys, Secret, SecretSpec, Template,
    TemplateSpec,
};
pub use node::{Node, NodeStats, NotificationStats, Stats};
pub use notify::{Channel, Notification};
pub use problem::{Problem, ProblemFault};
pub use queue::{Queue, QueueMinute, QueueSpec, QueueTask, Rate, Worker};
pub use run::{Attempt, DataInterval, Failure, Override, Run, TaskDetail, TaskRun, TaskWait, TaskWaitReason};
pub use runtime::{RecheckedScript, RetiredRuntime, Runtime, RuntimeState};
pub use script::{
    ActivateRequest, FetchRequest, INVOKE_TIMEOUT_MAX, Invocation, InvocationLog, InvokeRequest, Script, ScriptVersion,
    WORLDS,
};
pub use session::{Health, Session, SessionsEnded, SignIn, SignedIn};
pub use submission::{Batch, BatchItem, BatchResults};
pub use timer_task::{CompatibilityAnswer, Timer, TimerTask, TimerTaskId, TimerTaskSubmission, Timers};
pub use token::{MadeToken, NewToken, Role, Token};

pub use heddle_domain::backfill::BackfillSpec as BackfillRequest;
pub use heddle_domain::dispatch::{AssignmentState, OfferSpec};
pub use heddle_domain::notify::channel::{ChannelKind, ChannelSpec};
pub use heddle_domain::retention::{EndState, Pruned, Retention};
pub use heddle_domain::spec::{Dedupe, SubmissionSpec as Submission};
pub use heddle_domain::state::{
    AttemptState, ErrorKind, LogLevel, NotificationState, RunState, Skip, TaskState, Trigger,
};
pub use heddle_domain::topic::TopicSpec;
pub use heddle_domain::wait::RunWait;
