# Every word of the pages in English. `zh.ftl` has the same keys, in the same order.
skip = Skip to the content
main-navigation = Main
open-menu = Open the menu
close-menu = Close the menu
breadcrumbs = Where you are
close = Close
search = Search
search-hint = Groups, runs, scripts, actions
page = page
live = live
live-off = not live
live-brief = updates every few seconds
reconnecting = reconnecting
stale-since = out of date since #
page-over = no longer available
session-over = signed out
session-typed = Your session has ended. What you typed is still here: sign in again, then send it.
sign-in-tab = Sign in in a new tab
session-kept = Your session has ended, so nothing was saved. Sign in, which opens a new tab. Then send what you typed again, here.
send-again = Send again
ago = { $span } ago
in-span = in { $span }
just-now = just now
since-at = since { $at }
copied = copied
sign-out = Sign out
signed-in-as = Signed in as { $name }
sign-in = Sign in
sign-in-text = Paste a token. It starts a session that ends after 12 hours, or when you sign out.
sign-in-wrong = This token is unknown, revoked or expired.
sign-in-elsewhere = You can sign in only on this page.
sign-in-worker = This token is for workers: it has no pages. Sign in with a token of another role.
sign-in-how = How do I get a token?
sign-in-with = Sign in with { $name }
sign-in-or = Or with a token:
provider-away = { $name } does not answer. Try again in a moment, or sign in with a token.
provider-not-begun = This sign-in was started in another browser, or more than ten minutes ago. Start again here.
provider-denied = { $name } did not sign you in. Its answer: “{ $code }”.
provider-no-role = You are signed in at { $name } as { $person }, but that account has no role here. Ask your Heddle administrator to add you to a group that has a role.
provider-code = This sign-in was already used, or it took too long. Start again here.
provider-wrong = The answer from { $name } was rejected: { $why }. Start again. If it keeps failing, tell your Heddle administrator.
provider-form = it is not an ID token
provider-key = it is signed with a key that is not the provider's
provider-signature = its signature is not valid
provider-issuer = another provider issued it
provider-audience = it was issued for another application
provider-expired = it has expired, or the clocks differ by more than a minute
provider-nonce = it belongs to another sign-in
provider-person = it is about another person than the ID token
provider-control = the id or the e-mail address of the person contains control characters
token = Token
nav-overview = Overview
nav-groups = Groups
nav-runs = Runs
nav-backfills = Backfills
nav-scripts = Scripts
nav-queues = Queues
nav-dispatch = Dispatch
nav-topics = Topics
nav-notifications = Notifications
nav-system = System
nav-preferences = Preferences
nav-api = API
keys-title = Keyboard shortcuts
keys-search = Search
keys-palette = Find or do anything
keys-next = Next, previous in a list
keys-open = Open
keys-grid = Move in the grid
keys-close = Close
keys-theme = Light or dark
keys-help = Show these shortcuts
not-found = Not found
not-found-text = It may have been deleted or renamed, or the address is wrong.
gone-by = was deleted by
gone-audit = Show the audit entry
gone-old = Runs that have ended are removed when they are older than the retention allows.
forbidden = Not allowed
forbidden-text = Your role does not allow this.
busy = Too many requests
busy-text = This node is busy. The page retries automatically.
busy-again = This node is busy. Nothing is sent again automatically: try again in a moment.
away = The database does not answer
away-text = Runs continue as soon as it is back. This page retries automatically.
away-again = Runs continue as soon as it is back. Nothing is sent again automatically: check what has changed, then try again.
broken = Something went wrong
broken-text = This is an error in Heddle. The node's log has the details.
refused = Not possible
no-nul = The address or the form contains the character U+0000, which no name and no text can contain.
not-a-form = What was sent is not a form of a page. Programs use the API.
refused-text = Heddle's reason:
line-n = line { $n }
try-again = Try again
typed-kept = What you typed, to copy
log-before = Earlier lines
log-from-start = From the first line
log-last = Last lines
log-follow = Follow the end
log-following = Following: new lines appear at the end.
next-page = Next page
legend = States
unset = (not set)
preset = (default: { $value })
state-succeeded = succeeded
state-failed = failed
state-running = running
state-ready = ready
state-pending = pending
state-waiting = waiting
state-retrying = retrying
state-paused = paused
state-upstream_failed = upstream failed
state-skipped = skipped
state-cancelled = cancelled
state-timed_out = timed out
state-lost = lost
state-late = overdue
state-disabled = disabled
state-enabled = enabled
state-active = active
state-version-active = active
state-draining = draining
state-drained = drained
state-stopped = stopped
state-sent = sent
state-assigned = assigned
state-completed = completed
state-revoked = revoked
state-expired = expired
state-scheduled = scheduled
state-sending = being sent
state-in-queue = in the queue
state-fenced = lease lost
state-notification-pending = waiting to be sent
state-backfill-pending = not created yet
state-item-pending = queued
trigger-manual = manual
trigger-schedule = schedule
trigger-backfill = backfill
trigger-upstream = upstream group
trigger-task = task
trigger-rerun = rerun
misfire-once = one run for all missed times
misfire-skip = skipped
misfire-all = one run for each missed time
schedule-cron = Cron
schedule-every = Every
schedule-after = After the previous run
schedule-once = Once
schedule-daily = Daily
schedules-count = { $n } schedules
every-minute = every minute
every-hour-at = every hour at minute { $minute }
every-hours-at = every { $n } hours at minute { $minute }
every-day-at = every day at { $at }
every-weekday-at = every { $day } at { $at }
every-workday-at = Monday to Friday at { $at }
every-month-at = on day { $n } of each month at { $at }
after-run = { $span } after the end of the previous run
weekday-names = Monday Tuesday Wednesday Thursday Friday Saturday Sunday
welcome = Your first run in three steps
welcome-script = Write a script and upload it
welcome-group = Describe a group of tasks
welcome-run = Run it and watch
needs-attention = Needs attention
things-need =
    { $n ->
        [0] all clear
        [one] { $n } item
       *[other] { $n } items
    }
things-recovered = { $n } recovered
all-well = No group is failing, no schedule is overdue, no queue is stalled.
newest-run = The newest run:
recovered = Failed within 24 hours; the latest run of the group did not fail
queue-named = queue { $name }
topic-named = topic { $name }
script-named = script { $name }
channel-named = channel { $name }
node-named = node { $name }
stalled =
    { $n ->
        [one] { $n } task run is waiting and no worker claims it
       *[other] { $n } task runs are waiting and no worker claims them
    }
stalled-held =
    { $n ->
        [one] { $n } task run is waiting; workers hold { $held } and claim no more
       *[other] { $n } task runs are waiting; workers hold { $held } and claim no more
    }
stalled-paused =
    { $n ->
        [one] { $n } task run is waiting: the queue is paused
       *[other] { $n } task runs are waiting: the queue is paused
    }
schedule-late = schedule { $name } has not started its run
node-lost = no heartbeat
given-up = { $n } not delivered
timed-out-times =
    { $n ->
        [one] { $n } attempt timed out in the last 24 hours, in
       *[other] { $n } attempts timed out in the last 24 hours, latest in
    }
runs-count =
    { $n ->
        [one] { $n } run
       *[other] { $n } runs
    }
failed-count = { $n } failed
restart = Restart
restart-will = Continues from the failed tasks; tasks that succeeded keep their results
restart-newest = Restart newest
restart-newest-will = Restarts the newest of these failed runs from its failed tasks; the other runs stay as they are
day-title = Last 24 hours and next 24 hours
day-empty = Nothing ran in the last 24 hours, and nothing is scheduled for the next 24.
now = now
more-lanes = Showing { $n } groups, first of all those that failed, are running or are due. The Groups page lists all of them.
lane-label = { $name }: { $runs } runs in the last 24 hours, { $instants } scheduled in the next 24
lane-label-thinned = { $name }: { $runs } of its runs in the last 24 hours, { $instants } scheduled in the next 24
day-thinned = Of a group with more than { $n } runs, the last { $each } of each hour are shown, and the last { $each } that failed.
pace-title = Runs per minute, last hour
pace-most = peak { $n } per minute
pace-label = { $runs } runs in the last hour, { $failed } of them failed
now-running = running attempts
now-ready = ready
now-queued = waiting in queues
now-retrying = waiting to retry
now-live = active runs
nodes = Nodes
node = Node
state = State
in-hand = In progress
of = { $n } of { $all }
all = All
group = Group
script = Script
run = Run
find-queues-max = Of the queues, only the first { $n } were searched.
nothing-found = Nothing found for “{ $text }”.
find-restart = Restart failed runs…
find-pause = Pause or cancel runs…
find-resume = Resume paused runs…
find-enable = Enable or disable groups…
find-pause-queue = Pause or resume a queue…
find-theme = Light or dark, language, time zone
new-group = New group
filter = Filter
filter-name = Filter by name
category = Category
category-named = category { $name }
all-groups = all groups
all-categories = All categories
categories-count = { $n } categories
all-states = All states
all-triggers = All triggers
all-tasks = All tasks
enabled = Enabled
disabled = Disabled
enabled-named = { $name } is enabled
last-runs = Last 30 runs
rate = Success, 7 days
median = Median
median-is = (median { $span })
next = Next
next-is = next
follows = Depends on
no-groups = No groups match.
no-groups-yet = No groups yet. The overview shows the first three steps.
strip-label = Last { $runs } runs, { $failed } of them failed
said-enabled = Enabled.
said-disabled = Disabled. Active runs will finish.
said-enabled-many =
    { $n ->
        [one] { $n } group enabled.
       *[other] { $n } groups enabled.
    }
said-disabled-many =
    { $n ->
        [one] { $n } group disabled. Active runs will finish.
       *[other] { $n } groups disabled. Active runs will finish.
    }
many-ticked = Selected groups:
said-set-in-part = Changed: { $n } of { $all }. Not changed: { $names } ({ $why })
many-none = Select at least one group first.
many-enable-sure = Enable the selected groups (#)? Their schedules start runs again.
many-disable-sure = Disable the selected groups (#)? They start no new runs; active runs finish.
choose-all = Select all
choose-named = Select { $name }
view = View
view-list = List
no-links = No group that matches depends on another group.
links-too-many = { $n } groups are too many to draw. Filter by name to see the groups that are connected.
links-hint = An arrow leads to the group that depends on the other group. A dashed arrow leads to a group whose runs are started by a task. The icon is the result of the latest run. A faint box is a disabled group.
links-only = Groups without links are only in the list.
links-label = Graph of { $groups } groups and { $links } links
revision-n = revision { $n }
revision-newer = the spec below is older: show revision { $n }
interval = data of
made-by = by { $name }
against-n = against { $n }
waits-for = waits for
followed-by = upstream of
starts-runs-of = starts runs of
started-by = runs started by
run-now = Run…
backfill = Backfill
disable = Disable
disable-will = No new runs; active runs finish
enable = Enable
enable-will = Schedules start runs again
tab-grid = Grid
tab-graph = Graph
tab-runs = Runs
tab-schedules = Schedules
tab-spec = Spec
tab-calendar = Calendar
tab-state = State
tab-timeline = Timeline
tab-log = Log
tab-data = Data
tab-attempts = Attempts
tab-events = Events
runs = Runs
runs-shown = How many runs
no-runs-yet = No runs yet.
grid-label = { $tasks } tasks by { $runs } runs; arrow keys move, Enter shows details
more-rows = { $n } more are not shown.
open-run = Open run
items-failed = { $n } of { $all } items failed
attempts-count =
    { $n ->
        [one] { $n } attempt
       *[other] { $n } attempts
    }
ended = ended
as-of-run = States of the latest run:
zoom-in = Zoom in
zoom-out = Zoom out
zoom-fit = Fit
graph-too-large = { $n } tasks are too many to draw. The Spec tab lists all of them; after the first run, the grid does too.
graph-label = Graph of { $tasks } tasks and { $edges } dependencies
graph-critical = The thick line is the critical path: the chain of tasks that made the run take as long as it did.
durations = Durations
durations-label = Durations of the last { $n } runs
start-time = Start
drag-hint = drag to select a time range
logical-time = Logical time
logical-time-hint = The time the run is for: a date means midnight in { $zone }, the group's time zone; a time has its zone. Empty means now
trigger = Trigger
took = Duration
created = created
created-manual = created by hand, or through the API
created-schedule = created by a schedule
created-backfill = created by a backfill
created-upstream = created by an upstream group
created-task = created by a task of another run
created-rerun = created as a rerun
error = Error
no-schedules = No schedules. Runs are started by hand, by other groups, or through the API.
time-zone = Time zone
starts = Starts
ends = Ends
missed-instants = Missed times
next-instants = Next scheduled times
no-next = Nothing is scheduled.
year = Year
to-come = scheduled
to-come-count = { $n } scheduled
calendar-by = Days in { $zone }, by logical time; runs without one count on the day they were created. Select a day to see its runs.
calendar-cut = Only the latest { $n } runs of schedules and backfills are shown and, of the latest { $m } runs of all kinds, those that were started in other ways.
state-hint = Values that scripts keep between runs. A value is saved together with the result of its task.
no-state = No saved values.
value = Value
group-disabled = This group is disabled: its schedules start no runs.
run-title = Start a run
no-params = This group's scripts take no params.
needed = required
as-json = JSON, for example { $example }
param-of-tasks = For { $tasks }
more-params = Params as JSON
params = Params
params-json = Params (JSON)
params-unread = They cannot be shown: { $why }
params-json-hint = For all tasks; overrides the fields above
task-params-json = Params of single tasks (JSON)
more-options = Logical time, key, priority
key = Key
key-is = key
key-hint = Unique within the group: a second run with the same key is refused
priority = Priority
force-disabled = Run although the group is disabled
start-run = Start
cancel-form = Cancel
no-number = “{ $text }” is not a whole number
number-least = at least { $n }
number-above = more than { $n }
number-most = at most { $n }
number-below = less than { $n }
number-default = default { $value }
number-missing = a number is missing
said-started = Started.
said-started-before = This form has already started this run. To start another one, open the form again.
backfill-title = Run for past times
backfill-no-history = Backfills are not allowed for this group: its spec does not say `history: true`. If its scripts can work on a past logical time, add that to the spec. To run the group for a single past time, use Run and give a logical time.
backfill-edit-spec = Edit the spec
backfill-zone = Dates and times are in the group's time zone, { $zone }: `2026-01-01`, `2026-01-01T02:00`. A time may also name its own: `2026-01-01T02:00:00+08:00`. A date means midnight at its beginning, also in “To”: with `2026-01-31`, only the midnight of that day is included.
from = From
to = To
step = Step
max-active = Maximum number of active runs
existing-runs = Times that already have a run
order = Order
backfill-on_existing-skip = keep the run
backfill-on_existing-failed = run again if it failed
backfill-on_existing-all = run again
backfill-order-asc = oldest first
backfill-order-desc = newest first
include-downstream = Also run the groups that depend on this one, for each time
preview = Preview
start-backfill = Start the backfill
backfill-would =
    { $n ->
        [one] { $n } run will be created
       *[other] { $n } runs will be created
    }
backfill-nothing = Nothing to do: every time in this range has a run.
estimate = about { $span } ({ $each } each)
backfill-times = All times
planned = will be created
planned-count = { $n } to be created
backfill-days = Days and times in { $zone }.
backfill-months = Only the first { $n } months are drawn.
and-more = and { $n } more
first-only = Only the first { $n } are shown.
said-backfill = Backfill started.
said-saved = Saved.
spec-as-typed = Checked while you type.
spec-valid = This spec is valid.
spec-meanwhile = Somebody else has changed this spec since you opened it. Nothing of yours was saved: your text is below. See what changed, take over what you need, and save again.
script-meanwhile = Another version of this script is active now than when you began: @{ $n } instead of @{ $before }. Nothing of yours was saved: your text is below. See what changed, take over what you need, and save again.
save-onto = Save instead of revision { $n }
edit = Edit
save = Save
check = Check
revisions = Revisions
difference = difference
name = Name
group-there = A group named { $name } already exists.
said-cancel = Cancelled.
said-pause = Paused.
said-resume = Resumed.
said-restart = Restarted.
said-override = State set.
said-retry = Retrying now.
why-paused = No new task starts until the run is resumed.
done-cancel = cancelled by
done-pause = paused by
done-restart = restarted by
done-clear = tasks run again by
done-retry = retried at once by
why-failed =
    { $broken ->
        [0] { $tasks } failed.
        [one] { $tasks } failed; { $broken } task did not run because of that.
       *[other] { $tasks } failed; { $broken } tasks did not run because of that.
    }
why-broken =
    { $broken ->
        [one] { $broken } task did not run because of that.
       *[other] { $broken } tasks did not run because of that.
    }
why-retrying = { $tasks } failed and will be retried
why-ready = { $tasks }: waiting for a free slot on a node.
waits-worker = waits for a worker of the queue
waits-slots =
    { $n ->
        [one] waits for a slot of the pool
       *[other] waits for { $n } slots of the pool
    }
slots-held = { $n } of { $all } held by
waits-turn = waits for its turn
waits-turn-of =
    { $n ->
        [one] waits for its turn: { $n } of { $all } run of this group is active
       *[other] waits for its turn: { $n } of { $all } runs of this group are active
    }
waits-turn-behind =
    { $n ->
        [one] waits for its turn: { $n } run of this group is active
       *[other] waits for its turn: { $n } runs of this group are active
    }
waits-unknown = waits for something that only a newer version of Heddle can name
waits-items = { $at_a_time } at a time; { $n } queued
waits-sub-run = waits for the run that it started, of
sub-run = run
attempt-n = attempt { $n }
items-count =
    { $n ->
        [one] { $n } item
       *[other] { $n } items
    }
instants-count = { $n } instants
pause = Pause
pause-will = Starts no new tasks; running tasks finish
resume = Resume
resume-will = Starts the tasks that are ready
cancel = Cancel
cancel-will = Ends the run and interrupts its running tasks
cancel-sure = Cancel it? Running tasks are interrupted.
refused-ended = Already finished
refused-batch = The run carries messages of a topic: the topic has recorded what became of each, and sends failed ones again by itself
refused-restart = Only a failed or cancelled run can be restarted
rerun = Rerun…
rerun-will = Creates a new run like this one, with the same or other params
clear = Restart from here
clear-will = Runs this task and everything that depends on it again; other results are kept
clear-sure = Run this task and everything that depends on it again? Their results are replaced.
clear-one = Run only this task
clear-one-will = Runs this task again; tasks that depend on it keep their results
clear-one-sure = Run only this task again? Its result is replaced.
clear-item = Run this item again
clear-item-will = Runs this item and the tasks that depend on the map again; other items keep their results
clear-item-sure = Run this item again, and the tasks that depend on the map?
said-clear = Running again.
compare = Compare
compare-will = Compares it with the run before it
compare-title = Compare two runs
compare-hint = Select two runs. A single one is compared with the run before it.
compare-this = Compare the run of { $at }
compare-before = Before
compare-after = After
compare-with = with
compare-none = There is no other run to compare with.
compare-only = Group { $name } has only this run: there is nothing to compare it with yet.
compare-oldest = Group { $name } has no run before this one. Choose another one above.
compare-same = No differences.
compare-long = Too long to compare here.
compare-absent = not present
compare-specs = Changes in the spec
revision = Revision
rerun-same = New run, same params
rerun-changed = New run, other params
scripts-pinned = With the script versions of this run
scripts-active = With the active script versions
override = Set the state
override-open = Set state…
override-run-will = Sets the state of this run by hand, with a reason
override-task-will = Sets the state of this task by hand, with a reason
override-title = Set the state of this run
override-task-title = Set the state of task
override-now = Now:
override-to = New state
override-run-succeeded = Groups that depend on this one continue.
override-run-failed = Groups that depend on this one keep waiting.
override-task-succeeded = Tasks that depend on it continue; a failed run continues as well.
override-task-skipped = Tasks that depend on it are skipped too, unless their trigger rule says otherwise.
override-task-failed = Tasks that depend on it do not run, unless their trigger rule says otherwise.
override-reason = Recorded in the audit and shown with the run. A running attempt is cancelled first.
override-output = Give an output
override-output-json = Output that dependent tasks read (JSON), for “succeeded”
set-by-hand = State set by hand by { $name }
reason = Reason
timeline-label = Timeline of a run of { $tasks } tasks
legend-waits = waiting for a slot or a worker
legend-pause = pause before a retry
legend-critical = critical path
tasks = Tasks
task = Task
what-it-says = Message
next-try = next attempt
waits-rate-limit = waits for the rate limit of
waits-queue-paused = waits for a worker, and the queue is paused:
progress = Progress
progress-of = Progress of { $name }
items-spread = median { $median }, longest { $longest }
failed-items =
    { $n ->
        [one] { $n } failed item
       *[other] { $n } failed items
    }
retry-now = Retry now
retry-will = Starts the next attempt now
no-lines = No log lines.
level = Level
level-from = { $level } and above
search-log = Search the log
download = Download
outputs = Outputs
no-outputs = No task has returned an output yet.
no-outputs-ended = No task returned an output.
params-by-task = Params of each task, and where they come from
param-script = script default
param-group = group
param-task = task
param-run = this run
param-task-run = this run, for this task
param-upstream = output of a task before it
no-params-task = No params.
no-output-yet = no output yet
no-output = no output
output-omitted = too large to be shown here; the API shows the output of each task and item
error-omitted = the errors of this run are too large to be shown here in full; the API shows the error of each task and item
facts = Facts
scripts-by-task = Script of each task
id = Id
data-interval = Data interval
source = Created by
none = None.
cut-of = Truncated: the whole value has { $bytes }.
no-attempts = No attempts yet.
attempt = Attempt
memory = Memory
processor = Processor
started = Started
details = Details
label = Label
label-hint = label=value
param-hint = param=value
param-looked = A filter by params searches 2,000 runs at a time; the next page continues with older runs.
no-runs = No runs match.
no-runs-at-all = No runs.
remove-filter = Remove this filter
bulk-title = Change all matching runs
bulk-hint = First shows how many runs would change.
bulk-filter-first = To change many runs at once, filter the list first.
bulk-why-not = Why it would not change
bulk-would =
    { $matched ->
        [one] { $action }: { $matched } run matches.
       *[other] { $action }: { $matched } runs match.
    }
# It follows another sentence.
bulk-would-not = { " " }{ $n } of them would not change.
said-bulk =
    { $matched ->
        [one] { $changed } of { $matched } run changed.
       *[other] { $changed } of { $matched } runs changed.
    }
# These follow another sentence.
said-bulk-before = { " " }{ $n ->
        [one] This form has already started { $n } of them. To start it again, open the form again.
       *[other] This form has already started { $n } of them. To start them again, open the form again.
    }
said-bulk-why-not = { " " }Not changed: { $why }
action = Action
no-backfills = No backfills yet. Groups with `history: true` have a Backfill button.
left-alone =
    { $n ->
        [one] { $n } time already had a run and was skipped.
       *[other] { $n } times already had a run and were skipped.
    }
n-in-state = { $n } { $state }
backfill-pause-will = Creates no more runs; active runs continue
backfill-resume-will = Continues to create runs
backfill-cancel-will = Creates no more runs and cancels the active ones, also those of dependent groups
backfill-cancel-sure = Cancel this backfill? Its active runs are cancelled, also those of dependent groups.
backfill-restart = Restart the failed runs
backfill-restart-will = Continues each failed run of this backfill from its failed tasks; tasks that succeeded keep their results
backfill-asked = What was asked for
backfill-of = backfill of { $group }
backfill-dependants = Dependent groups
backfill-dependants-run = run for each time as well
backfill-dependants-none = do not run
language = Language
theme = Theme
theme-system = Same as the system
theme-light = Light
theme-dark = Dark
zone-unknown = “{ $name }” is not a time zone
no-scripts = No scripts yet. Upload one above, or with `heddle script push`.
active-version = Active
newest-is = latest: @{ $n }
world = Kind
size = Size
changed = Changed
description = Description
upload = Upload
upload-script = Upload a script
write-script = Write a script
script-there = There is a script “{ $name }” already. Change its source on its own page.
script-source = Source
save-and-try = Save and try
files = Files
upload-name = Name (default: from the file)
upload-keep = Upload without activating
upload-hint = WebAssembly (.wasm), or JavaScript, TypeScript and Python as text.
upload-drop = You can also drop files anywhere on this page.
upload-none = Choose a file first.
upload-many = Choose at most { $n } files. Nothing was uploaded.
upload-empty = Nothing was uploaded. Empty: { $names }
upload-again = Choose the files again: a browser does not keep them.
said-uploaded = { $name } uploaded ({ $world }).
said-compiled = Compiled in { $span }.
said-activated = Version { $n } is active.
versions = Versions
version = Version
digest = Digest
params-changed =
    { $n ->
        [one] Params: { $n } change since the version before
       *[other] Params: { $n } changes since the version before
    }
schema-added = is new
schema-added-required = is new and required
schema-removed = was removed
schema-required = is now required
schema-optional = is now optional
schema-keyword = : `{ $keyword }` is { $to }, was { $from }
schema-keyword-new = : `{ $keyword }` is { $to }, was not set
schema-keyword-gone = : `{ $keyword }` is no longer set, was { $from }
script-lately =
    { $n ->
        [one] Last attempt, in the newest runs of the groups that use it
       *[other] Last { $n } attempts, in the newest runs of the groups that use it
    }
longest = longest
used-by = Used by
used-by-nobody = No group and no topic uses it.
needs = What it needs
needs-nothing = No grants.
needs-sql = SQL: the task names its connections, `sql: [NAME]`, and each is granted to the group.
needs-secret = Secrets: each is granted to the group.
needs-http = HTTP requests, as far as the node's outbound policy allows.
needs-enqueue = Starts runs of other groups.
needs-notify = Sends notifications.
needs-state = Keeps values between runs.
imports-count = { $n } imports
params-schema = Params schema
activate = Activate
activate-will = New runs use this version
console = Console
console-title = Try it without creating a run
console-no-grants = The console has no grants: calls for SQL connections, secrets, runs of other groups, notifications or stored values fail with “not granted” or “not available”. To try a script that needs them, start a run of a group that grants them.
console-consumer = This script handles messages of a topic, not params. To try it, name it as the `script` of a topic and schedule a message that is due now: `heddle topic send`.
console-json-hint = Overrides the fields above
console-run = Run
console-kept = The last inputs are kept in this browser.
console-empty = Output, log, duration and memory appear here.
timeout = Timeout
result = Result
no-queues = No queues yet. A task with `queue: NAME` waits in that queue until one of your workers claims it.
queue = Queue
waiting = Waiting
oldest = Oldest
claimed = Claimed
workers = Workers
worker = Worker
tags = Tags
seen = Last seen
no-workers = No workers are connected.
rate-per = rate limit per { $span }
queue-pause-will = Workers get no new task runs; claimed ones continue
queue-resume-will = Workers get task runs again
queue-tasks = Claimed task runs, then waiting ones in the order in which workers get them
queue-empty = Nothing is waiting or claimed.
queue-more = Showing the first { $n }.
per-minute = Per minute
per-second = per second
ended-per-minute = finished per minute
at-most = peak { $n }
hour-ago = an hour ago
queue-depth-hour = Waiting, last hour
queue-depth-label = At most { $n } task runs waited at once in the last hour
queue-ended-hour = Finished by workers per minute, last hour
queue-ended-label =
    { $n ->
        [one] Workers finished { $n } task run in the last hour
       *[other] Workers finished { $n } task runs in the last hour
    }
since = Since
lease-until = lease expires
no-notifications = No notifications yet.
no-notifications-match = No notifications match.
subject = Subject
channel = Channel
channels = Channels
no-channels = No channels yet. A channel is where notifications go: email, chat or a webhook. Create one with `heddle channel set`.
kind = Kind
resend = Send again
resend-will = Sends the same notification again
test-channel = Send a test
test-channel-will = Sends a test message through this channel
said-resend = Will be sent again.
said-test-sent = Delivered: channel { $name } accepted the test message.
said-test-pending = The test message is still waiting to be sent.
said-test-failed = The test message failed on channel { $name }: { $why }
no-topics = No topics yet. A topic holds messages that are sent when they are due.
topic = Topic
sent-to = Sent to
granularity = Granularity
granularity-day = day
granularity-instant = instant
batch = Batch
batch-of = batches of { $n }
topic-limit = at most { $n } messages in { $span }
days = Days
day = Day
month = Month
weekdays = Mon Tue Wed Thu Fri Sat Sun
messages = Messages
today = Today
no-messages-today = nothing is due
no-messages = No messages.
message-errors = Why messages failed
message-errors-of = The most frequent errors of { $n } messages that failed.
look-up = Look up
look-missing = Give a sender or a receiver.
sender = Sender
receiver = Receiver
due = Due
payload = Payload
buckets = Buckets
buckets-label = { $n } buckets that are not empty, of 10,000
cancel-messages = Cancel messages
cancel-count = Count…
cancel-hint = Give a day, a sender or a receiver. You first see how many messages that is.
cancel-missing = Give a day, a sender or a receiver.
cancel-would = { $n ->
        [one] { $n } message matches and has not been sent.
       *[other] { $n } messages match and have not been sent.
    }
cancel-would-most = { $n ->
        [one] Up to { $n } message matches: it is in the queue, where a worker may have it.
       *[other] Up to { $n } messages match: some are in the queue, where a worker may have them.
    }
cancel-messages-will = Messages already in progress are still sent
said-cancelled-messages = { $n ->
        [one] { $n } message cancelled.
       *[other] { $n } messages cancelled.
    }
user = User
user-named = user { $name }
offer = Offer
offers = Offers
offer-once = once
offer-interval = at intervals
offer-every = every { $span }
offer-daily = daily
offer-daily-at = daily at { $at }
offer-days-at = every { $n } days at { $at }
offers-ahead = Next 7 days
offer-line = { $name }: due { $n } times in the next 7 days
offers-dense = An offer that is due more than { $n } times is drawn as one line.
no-offers = No offers yet. An offer is work that users poll for, once or repeatedly, with a stock: `heddle apply -f offer.yaml`.
offer-of-run = of the run
audience = Audience
audiences = Audiences
no-audiences = No audiences yet. An audience is the user or the group of users that offers are for.
members = Members
stock = Stock
stock-each = once for each
stock-label = { $taken } taken, { $left } left
taken-n = { $n } taken
occurrence = Occurrence
occurrences = Occurrences
no-occurrences = Nothing is due.
assignments = Assignments
no-assignments = No assignments match.
assignments-of-week = Without a start time, shows the last seven days, or the seven days before the end time.
poll-as = Poll as
poll-as-text = Shows what a user would get now, and why. Nothing is taken.
poll-as-look = Show
poll-as-title = Poll as { $user }
poll-as-now = Poll result
peek-gives = A poll would return
peek-redo = The user already holds this, and a poll would return it again:
peek-nothing = A poll would return nothing.
peek-next = Next due
peek-never = Nothing is coming up.
peek-audiences = Audiences
peek-window = Window
peek-why = Result
peek-no-offers = No offer is for this user or for a group of this user.
peek-more = There are more offers than are shown.
peek-given = returned by a poll
peek-behind = due, but another offer goes first
peek-had = this user has already had it
peek-used-up = out of stock
peek-not-due = not due yet
peek-passed = was due before the window; nothing more is coming
peek-disabled = disabled
revoke = Revoke
revoke-will = Takes it back and frees its stock
revoke-sure = Take it back from this user?
said-revoked = Revoked.
add = Add users, separated by commas or line breaks
remove = Remove users, separated by commas or line breaks
members-nobody = Name at least one user.
members-added =
    { $n ->
        [one] { $n } member added.
       *[other] { $n } members added.
    }
members-removed =
    { $n ->
        [one] { $n } member removed.
       *[other] { $n } members removed.
    }
members-now = Done: there are { $n } members now.
members-same = Nobody was added or removed.
members-already = Already members: { $names }.
members-missing = No members before: { $names }.
pools = Pools
pool = Pool
no-pools = No pools yet. A pool limits how many of the tasks that name it run at once.
slots = Slots
held = Held
holders = Who holds
waiters = Who waits
nobody-waits = none
held-unknown = Not known: only the first { $n } holders of all pools are read.
slots-count = { $n } slots
pools-hint = A task that names a pool runs only while it holds slots of that pool, counted across all nodes.
connections = Connections
no-connections = No connections yet.
connections-max = Max. connections
granted-to = Granted to
access = Access
read-only = read only
read-write = read and write
secrets = Secrets
secrets-hint = Values cannot be read back. Set them with `heddle secret set`.
no-secrets = No secrets yet.
retention = Retention
retention-kept = How long data is kept
retention-what = Data
retention-for = Kept for
retention-due = To remove now
retention-with-runs = as long as their runs
retention-while-needed = while something needs them
retention-hot = Lists that do not ask for older runs show those that ended in the last { $span }.
retention-oldest = Oldest to remove
retention-succeeded = Runs that succeeded
retention-failed = Runs that failed
retention-cancelled = Runs that were cancelled
retention-logs = Logs of runs
retention-notifications = Notifications that were sent or given up
retention-assignments = Assignments that have ended, from their start
retention-events = Events
retention-audit = Entries of the audit
retention-occurrences = Occurrences of offers that no poll returns any more
retention-offers = Deleted offers with no data left
retention-backfills = Ended backfills with no runs left
retention-tokens = Revoked or expired tokens that the audit no longer names
retention-days =
    { $n ->
        [one] { $n } whole day of runs is removed at once.
       *[other] { $n } whole days of runs are removed at once.
    }
retention-hint = The nodes remove this by themselves, in a round every ten minutes. A group can set its own time for its runs with `retention` in its spec; that is counted here.
audit = Audit
audit-action-create = created
audit-action-update = changed
audit-action-upload = uploaded
audit-action-activate = activated
audit-action-enable = enabled
audit-action-disable = disabled
audit-action-pause = paused
audit-action-resume = resumed
audit-action-cancel = cancelled
audit-action-restart = restarted
audit-action-override = state set by hand
audit-action-retry = retried
audit-action-clear = run again
audit-action-revoke = revoked
audit-action-resend = sent again
audit-action-delete = deleted
audit-action-prune = old data removed
audit-action-keep = kept
audit-action-retire = retired
audit-action-detach = detached
audit-action-reseal = encrypted again
audit-action-sign_in = signed in
audit-action-sign_out = signed out
audit-action-end_sessions = sessions ended
audit-action-refuse = sign-in refused
audit-kind-assignment = assignment
audit-kind-audience = audience
audit-kind-backfill = backfill
audit-kind-category = category
audit-kind-channel = channel
audit-kind-connection = connection
audit-kind-group = group
audit-kind-notification = notification
audit-kind-offer = offer
audit-kind-pool = pool
audit-kind-queue = queue
audit-kind-run = run
audit-kind-runtime = runtime
audit-kind-script = script
audit-kind-secret = secret
audit-kind-setting = setting
audit-kind-template = template
audit-kind-token = token
audit-kind-topic = topic
all-actions = All actions
all-kinds = All kinds
when = When
actor = Who
thing = Object
tokens = Tokens
no-tokens = No tokens yet.
token-new = The new token
token-once = Copy it now: it is not shown again.
copy = Copy
token-make = Create a token
token-queues = Only these queues, separated by commas (role worker)
token-queues-short = Queues of a worker: a, b
token-users-short = Users of a worker: a, b
token-users = Only these users, separated by commas (role worker)
role = Role
bound-to = Bound to
last-used = Last used
expires = Expires
never = never
token-revoke-will = Everyone who uses it is signed out everywhere
token-revoke-sure = Revoke this token? Everyone who uses it is locked out at once.
signed-in = Signed in now
signed-in-none = Nobody is signed in.
signed-in-at = signed in
sessions = sessions
sessions-until = expires at the latest
person = person
sessions-end = Sign out
sessions-end-will = Ends all sessions on all nodes; open pages ask to sign in
sessions-end-sure = End all sessions? Whoever has the token, or an account at the provider, can sign in again.
said-sessions-ended = Signed out everywhere.
address = Address
behind = Changes not yet applied
