package events

import "encoding/json"

// members calls fn for each member of an object, in order, until fn returns an error. The object must be valid JSON that
// begins with its brace; then no index below can run out of it. It looks at each byte once and never recurses.
func members(object []byte, fn func(name string, value []byte) error) error {
	i := skipSpace(object, 1)
	for object[i] != '}' {
		if object[i] == ',' {
			i = skipSpace(object, i+1)
		}
		end := skipString(object, i)
		name := unquote(object[i:end])
		i = skipSpace(object, skipSpace(object, end)+1) // past the colon
		end = skipValue(object, i)
		if err := fn(name, object[i:end]); err != nil {
			return err
		}
		i = skipSpace(object, end)
	}
	return nil
}

func skipSpace(s []byte, i int) int {
	for s[i] == ' ' || s[i] == '\t' || s[i] == '\n' || s[i] == '\r' {
		i++
	}
	return i
}

// skipString returns the index behind the string that begins at i.
func skipString(s []byte, i int) int {
	for i++; s[i] != '"'; i++ {
		if s[i] == '\\' {
			i++
		}
	}
	return i + 1
}

// skipValue returns the index behind the value that begins at i, which stands inside an object.
func skipValue(s []byte, i int) int {
	switch s[i] {
	case '"':
		return skipString(s, i)
	case '{', '[':
		for depth := 0; ; {
			switch s[i] {
			case '"':
				i = skipString(s, i)
				continue
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			}
			i++
			if depth == 0 {
				return i
			}
		}
	default: // a number, true, false or null
		for s[i] != ',' && s[i] != '}' && s[i] != ' ' && s[i] != '\t' && s[i] != '\n' && s[i] != '\r' {
			i++
		}
		return i
	}
}

// unquote reads a valid JSON string.
func unquote(quoted []byte) string {
	for _, c := range quoted {
		if c == '\\' {
			var s string
			_ = json.Unmarshal(quoted, &s) // valid by the caller's promise
			return s
		}
	}
	return string(quoted[1 : len(quoted)-1])
}
