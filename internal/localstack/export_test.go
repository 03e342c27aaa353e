package localstack

// What the tests of package localstack_test look at from inside.
var (
	ChooseEngine    = chooseEngine
	RemoveAbandoned = removeAbandoned
	NewScratch      = newScratch
	FormReplicaSet  = formReplicaSet
	CacheDir        = cacheDir
	RustServer      = rustServer
	WheelServer     = wheelServer
)

const (
	RustVersion   = rustVersion
	WheelVersion  = wheelVersion
	ScratchMinAge = scratchMinAge
)

func (e engine) Name() string   { return e.name }
func (e engine) Binary() string { return e.binary }
func (e engine) Why() string    { return e.why }

func (s *scratch) Path() string  { return s.path }
func (s *scratch) Remove() error { return s.remove() }

// Forget lets go of the folder as a process does that is killed.
func (s *scratch) Forget() error { return s.lock.Close() }
