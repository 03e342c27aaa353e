package e2e

import (
	gobuild "go/build"
	"go/version"
	"os"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/moby/buildkit/frontend/dockerfile/instructions"
	"github.com/moby/buildkit/frontend/dockerfile/parser"
	"github.com/moby/buildkit/frontend/dockerfile/shell"
	"github.com/stretchr/testify/require"
)

// dockerfile is a Dockerfile as Docker reads it, for a build with arguments.
type dockerfile struct {
	t      *testing.T
	args   map[string]string // given to the build
	stages []instructions.Stage
	meta   []instructions.ArgCommand
}

func readDockerfile(t *testing.T, name string, args map[string]string) *dockerfile {
	t.Helper()
	f, err := os.Open(name)
	require.NoError(t, err)
	defer f.Close()
	parsed, err := parser.Parse(f)
	require.NoError(t, err)
	require.Empty(t, parsed.Warnings)
	d := &dockerfile{t: t, args: args}
	d.stages, d.meta, err = instructions.Parse(parsed.AST, nil)
	require.NoError(t, err)
	return d
}

// declare adds what ARG lines declare: the value given to the build, or the default.
func (d *dockerfile) declare(env []string, args []instructions.KeyValuePairOptional) []string {
	for _, a := range args {
		if given, ok := d.args[a.Key]; ok {
			env = append(env, a.Key+"="+given)
		} else if a.Value != nil {
			env = append(env, a.Key+"="+*a.Value)
		}
	}
	return env
}

// words are those of a command, with its variables filled in.
func (d *dockerfile) words(line string, env []string) []string {
	d.t.Helper()
	words, err := shell.NewLex('\\').ProcessWords(line, shell.EnvsFromSlice(env))
	require.NoError(d.t, err)
	return words
}

// Every image of the compose file is made from files that are there, by a Go that can build them, and starts the program that
// was built for it.
func TestImagesAreBuiltFromWhatIsThere(t *testing.T) {
	project := composeFile(t)
	found, err := filepath.Glob(filepath.Join(repository, "deploy/*/*Dockerfile*"))
	require.NoError(t, err)
	used := map[string]bool{}
	for name, folder := range built(t, project) {
		s := project.Services[name]
		require.Equal(t, absolute(t, repository), s.Build.Context)
		file := filepath.Join(s.Build.Context, s.Build.Dockerfile)
		used[file] = true
		t.Run(name, func(t *testing.T) {
			args := map[string]string{}
			for key, value := range s.Build.Args {
				args[key] = *value
			}
			i := imageOf(readDockerfile(t, file, args), s.Build.Context)
			require.Equal(t, []string{"./" + folder}, i.packages, "it builds the program of the service")
			require.Equal(t, []string(s.HealthCheck.Test[1:2]), i.entrypoint, "the health check asks the program that runs")
			_, port, _ := strings.Cut(environment(t, s)["AX_HTTP_ADDR"], ":")
			require.Equal(t, []string{port}, i.ports)
			require.Regexp(t, `^[1-9]\d*:[1-9]\d*$`, i.user, "it does not run as root")
		})
	}
	for _, file := range found {
		require.True(t, used[absolute(t, file)], "%s is used by no service, so nothing checks it", file)
	}
	require.Len(t, used, len(found))
}

func absolute(t *testing.T, name string) string {
	t.Helper()
	full, err := filepath.Abs(name)
	require.NoError(t, err)
	return full
}

// image is what a Dockerfile makes.
type image struct {
	packages   []string // built with go build
	entrypoint []string
	ports      []string
	user       string
}

// imageOf goes through a Dockerfile line by line and checks that what each one needs is there.
func imageOf(d *dockerfile, root string) (i image) {
	t := d.t
	t.Helper()
	var made []string // by go build, in the stages so far
	var meta []string
	for _, a := range d.meta {
		meta = d.declare(meta, a.Args)
	}
	var names []string
	for _, stage := range d.stages {
		base := d.words(stage.BaseName, meta)[0]
		if toolchain, ok := strings.CutPrefix(base, "golang:"); ok {
			wanted := regexp.MustCompile(`(?m)^go (\S+)$`).FindStringSubmatch(contents(t, root, "go.mod"))
			require.NotNil(t, wanted)
			language, _, _ := strings.Cut(toolchain, "-")
			require.GreaterOrEqual(t, version.Compare(version.Lang("go"+language), version.Lang("go"+wanted[1])), 0, "%s can build a module of go %s", base, wanted[1])
		}
		env := slices.Clone(meta[:0:0])
		i = image{packages: i.packages}
		for _, command := range stage.Commands {
			switch c := command.(type) {
			case *instructions.ArgCommand:
				env = d.declare(env, c.Args)
			case *instructions.CopyCommand:
				for _, source := range c.SourcePaths {
					if c.From == "" {
						matches, err := filepath.Glob(filepath.Join(root, source))
						require.NoError(t, err)
						require.NotEmpty(t, matches, "COPY %s", source)
						continue
					}
					require.Contains(t, names, c.From, "COPY --from")
					if at := slices.Index(made, source); at >= 0 { // where the program lies in the image
						made = append(made, destination(source, c.DestPath))
					}
				}
			case *instructions.RunCommand:
				line := strings.Join(c.CmdLine, " ")
				_, build, ok := strings.Cut(line, "go build ")
				if !ok {
					continue
				}
				words := d.words(build, env)
				output, pkg := words[slices.Index(words, "-o")+1], words[len(words)-1]
				require.True(t, path.IsAbs(output), line)
				made, i.packages = append(made, output), append(i.packages, pkg)
				program(t, root, pkg)
				symbol(t, root, words)
			case *instructions.EntrypointCommand:
				require.False(t, c.PrependShell, "the image holds no shell")
				i.entrypoint = c.CmdLine
				require.Contains(t, made, c.CmdLine[0], "ENTRYPOINT")
			case *instructions.ExposeCommand:
				i.ports = c.Ports
			case *instructions.UserCommand:
				i.user = c.User
			}
		}
		names = append(names, stage.Name)
	}
	return i
}

func destination(source, dest string) string {
	if strings.HasSuffix(dest, "/") {
		return dest + path.Base(source)
	}
	return dest
}

// program requires that a folder holds a program.
func program(t *testing.T, root, folder string) {
	t.Helper()
	pkg, err := gobuild.ImportDir(filepath.Join(root, folder), 0)
	require.NoError(t, err)
	require.Equal(t, "main", pkg.Name, folder)
}

// symbol requires that what the linker is told to set (-X path.name=value) is there; it would not complain.
func symbol(t *testing.T, root string, words []string) {
	t.Helper()
	flags := words[slices.Index(words, "-ldflags")+1]
	set := regexp.MustCompile(`-X (\S+)\.(\w+)=\S+`).FindStringSubmatch(flags)
	require.NotNil(t, set, "the version is set: %s", flags)
	folder, ok := strings.CutPrefix(set[1], "github.com/ax-scheduler/ax/")
	require.True(t, ok, set[1])
	pkg, err := gobuild.ImportDir(filepath.Join(root, folder), 0)
	require.NoError(t, err)
	declared := regexp.MustCompile(`(?m)^var ` + set[2] + ` string$`)
	require.True(t, slices.ContainsFunc(pkg.GoFiles, func(file string) bool { return declared.MatchString(contents(t, root, folder, file)) }), "%s has no var %s", set[1], set[2])
}

func contents(t *testing.T, parts ...string) string {
	t.Helper()
	body, err := os.ReadFile(filepath.Join(parts...))
	require.NoError(t, err)
	return string(body)
}
